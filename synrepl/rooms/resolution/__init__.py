"""State resolution: the algorithms that merge diverged states of a room."""
