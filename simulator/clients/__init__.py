"""Simulations of Matrix clients: processes with the client API, in a real PostgreSQL, while everything breaks."""
