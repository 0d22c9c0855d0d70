"""How far everything is, and how that is told."""
