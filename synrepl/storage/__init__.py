"""Facts in Postgres, as functions of a transaction."""
