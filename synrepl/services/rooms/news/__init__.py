"""What is new for a user: sync tokens, recent changes, and polls that wait for them."""
