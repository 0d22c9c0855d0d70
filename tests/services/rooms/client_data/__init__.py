"""What clients are told besides the events of rooms."""
