"""States in the tables: groups, their digests, the state line."""
