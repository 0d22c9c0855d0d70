"""``synrepl demo``: real processes, recorded traffic, some accidents, and a check of every fact."""
