"""Replication traffic on record: written, read, hidden, judged and played again."""
