"""Comparison of a lake with its database."""
