"""``synrepl rooms``."""
