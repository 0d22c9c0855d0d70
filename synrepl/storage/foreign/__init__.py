"""Reads the streams of a real Synapse from its database. Nothing here writes."""
