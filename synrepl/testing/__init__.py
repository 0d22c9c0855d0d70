"""Public fakes, checked against the real thing."""
