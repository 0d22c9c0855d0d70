"""Rooms that are shared with other servers."""
