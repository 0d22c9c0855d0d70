"""Reads the rooms of a real Synapse from its database. Nothing here writes."""
