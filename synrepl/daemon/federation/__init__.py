"""The listener for other servers and its endpoints, and how other servers are reached."""
