"""Staging tables, in which a job writes its rows before they are appended."""
