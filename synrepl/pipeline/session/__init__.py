"""A Spark session that begins and ends cleanly: which Java, which settings, which processes."""
