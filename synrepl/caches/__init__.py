"""Bounded caches that stay coherent with the streams, and indexes of recent changes."""
