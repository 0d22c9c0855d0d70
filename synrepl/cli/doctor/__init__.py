"""``synrepl doctor``."""
