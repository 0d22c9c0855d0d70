"""What is read next, and in which parts: positions, ranges of tokens, chunks for tasks."""
