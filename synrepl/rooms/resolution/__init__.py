"""State resolution: one state of a room from several that diverged."""
