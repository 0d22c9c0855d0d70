"""Joins of rooms of other servers, and the other memberships that need them: knocks, leaves and invites."""
