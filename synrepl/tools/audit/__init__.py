"""Whether caches hold what they should."""
