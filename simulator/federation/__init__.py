"""Other servers of rooms, in memory: pure rooms behind the server-server protocol, and links between servers."""
