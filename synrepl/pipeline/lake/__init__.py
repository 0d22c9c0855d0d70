"""Streams in a folder: one Delta table each, landed exactly once, checked, compacted, erased, replayed."""
