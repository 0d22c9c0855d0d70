"""The configuration of a process: its keys, how files are read, and what they are checked for."""
