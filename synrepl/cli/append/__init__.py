"""``synrepl append``."""
