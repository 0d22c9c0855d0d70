"""Rooms in a real PostgreSQL, with processes on a simulated clock: ``python -m simulator --rooms``."""
