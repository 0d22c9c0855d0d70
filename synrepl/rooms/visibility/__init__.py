"""Who may see an event, and why."""
