"""The in-memory store, for streams without a table and for tests."""
