"""Looking into a database for what is wrong: what is seen, what that means, and what cures it."""
