"""Servers that talk to each other over TLS, and what takes long of federation."""
