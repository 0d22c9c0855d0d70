"""Prometheus metrics of a process."""
