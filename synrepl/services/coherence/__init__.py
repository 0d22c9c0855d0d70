"""Caches stay in step with the streams."""
