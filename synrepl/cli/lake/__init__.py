"""``synrepl lake``."""
