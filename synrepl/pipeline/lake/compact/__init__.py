"""Compaction: few large files instead of many small ones."""
