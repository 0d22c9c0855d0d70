"""Bounded caches that stay coherent, and indexes of what has changed."""
