"""Unmodified Matrix clients against two workers, shown and counted."""
