"""Where writers and followers stand in a stream: pure arithmetic, no I/O."""
