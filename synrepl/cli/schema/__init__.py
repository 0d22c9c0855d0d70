"""``synrepl schema``."""
