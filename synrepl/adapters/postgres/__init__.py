"""PostgreSQL from the reactor: pool, sessions, single statements, LISTEN, embedded server."""
