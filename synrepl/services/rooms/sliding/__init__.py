"""Simplified sliding sync (MSC4186): rooms in windows of lists, and what a connection has been told of them."""
