"""Public fakes, checked against the real thing, and the simulator."""
