"""Waiting for positions: read your own writes."""
