"""Lakes: a folder with a Delta table per stream, landed exactly once, checked, compacted, erased and replayed."""
