"""Clients of a process's HTTP listener, which append facts and wait until a process has applied them."""
