"""The soak, for a minute."""
