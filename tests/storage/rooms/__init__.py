"""Tests of rooms in PostgreSQL."""
