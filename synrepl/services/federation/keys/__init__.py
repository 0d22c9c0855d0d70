"""Keys of servers: those of others are fetched, verified and remembered; those of this one are published."""
