"""Spark sessions, in reading order: ``options``, ``requirements``, ``settings``, ``session``."""
