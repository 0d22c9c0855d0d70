"""Maintenance of stored rooms."""
