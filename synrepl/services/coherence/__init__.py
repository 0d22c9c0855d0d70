"""Cache coherence: facts invalidate the caches of every process."""
