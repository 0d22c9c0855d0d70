"""Rooms with partial state: how they are joined, judged again and completed, as functions of a transaction."""
