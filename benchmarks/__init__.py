"""Benchmarks: the cost of the product relative to a bare minimum; see README.md."""
