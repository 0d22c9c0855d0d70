"""Databases that streams are read from: synrepl's own, and a real Synapse's, read-only."""
