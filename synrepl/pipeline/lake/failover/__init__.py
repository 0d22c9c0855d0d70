"""Rows of a lake that the database lost in a failover."""
