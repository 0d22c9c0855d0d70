"""``synrepl followers`` and ``synrepl dead-letters``."""
