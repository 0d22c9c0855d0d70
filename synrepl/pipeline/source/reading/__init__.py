"""Reads chunks from a database as Arrow record batches, in the process of a task."""
