"""Serving: a master answers its clients."""
