"""Rows of a DataFrame become facts of a stream, exactly once: staged by tasks, appended by the driver."""
