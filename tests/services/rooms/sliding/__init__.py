"""Tests of sliding sync."""
