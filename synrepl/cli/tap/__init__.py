"""``synrepl tap``."""
