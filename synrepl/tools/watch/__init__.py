"""Compares a real server's announced positions with the committed ones in its database."""
