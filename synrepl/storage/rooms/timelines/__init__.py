"""Statements for timelines of many rooms at once."""
