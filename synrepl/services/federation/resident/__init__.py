"""What this server does for others as one that is in a room: states, events, and memberships of their users."""
