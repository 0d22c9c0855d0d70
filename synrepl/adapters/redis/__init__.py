"""Redis pub/sub."""
