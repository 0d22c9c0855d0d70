"""Views of streams by key: the newest rows, what changed between two positions, a table that follows."""
