"""Replay: the facts of a lake are written to another database."""
