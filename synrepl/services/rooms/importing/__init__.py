"""Imports rooms from a real Synapse's database, and verifies all that it imports."""
