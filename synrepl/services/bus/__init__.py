"""Replication over Redis pub/sub, where every process receives every message."""
