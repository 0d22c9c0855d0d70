"""Waiting for positions."""
