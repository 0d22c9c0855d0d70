"""What a worker makes of a master's lines."""
