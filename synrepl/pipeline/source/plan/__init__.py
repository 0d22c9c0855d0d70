"""Scan plans: offsets, ranges of tokens by writer, and chunks for tasks."""
