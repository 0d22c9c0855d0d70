"""What is kept of other servers."""
