"""Rooms in PostgreSQL: events, states and orderings, as functions of a transaction."""
