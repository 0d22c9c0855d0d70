"""Rows of the tables of rooms: numbers, events, heads, waiting events."""
