"""Following a master: lanes, gap filling, and delivery to handlers."""
