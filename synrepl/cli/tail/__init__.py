"""``synrepl tail``."""
