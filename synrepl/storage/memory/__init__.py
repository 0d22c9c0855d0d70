"""The store in memory, for streams without a table and for tests."""
