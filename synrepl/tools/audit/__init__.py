"""Auditing caches: comparing entries with freshly loaded values."""
