"""Compares what a real server announces with what is committed in its database."""
