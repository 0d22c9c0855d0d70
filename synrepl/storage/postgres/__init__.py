"""The store of facts in PostgreSQL."""
