"""Chunks out of a database into Arrow record batches, in whatever process a task runs."""
