"""Lag, health and readiness of a process, and its status as data."""
