"""Maintenance of stored rooms: compaction, purge, erasure, collection of garbage, verification."""
