"""Clients of a process's HTTP listener: append facts, and wait until a process has applied them."""
