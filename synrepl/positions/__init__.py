"""Positions of writers and followers in a stream: pure arithmetic, no I/O."""
