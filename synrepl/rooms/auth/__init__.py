"""Authorization rules: which events authorise an event, and whether it is allowed."""
