"""PostgreSQL from the reactor: pools, sessions, LISTEN, the embedded server."""
