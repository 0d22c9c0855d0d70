"""PostgreSQL and Redis servers as child processes: standard library only, blocking calls."""
