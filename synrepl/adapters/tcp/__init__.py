"""TCP: line peers, the master's listener and the worker's connection."""
