"""``synrepl watch``."""
