"""Builders of processes and of their parts, for all tests."""
