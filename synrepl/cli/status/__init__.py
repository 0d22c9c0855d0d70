"""``synrepl status``."""
