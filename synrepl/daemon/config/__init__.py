"""The configuration of a process: its keys, how files are read, and how they are validated."""
