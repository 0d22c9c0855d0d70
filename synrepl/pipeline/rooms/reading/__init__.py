"""Reads the tables of rooms in place: on executors, in parallel, at one snapshot of the database."""
