"""Sends events and EDUs to other servers: a queue for each destination, owned by one process at a time."""
