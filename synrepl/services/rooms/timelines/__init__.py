"""What a user sees of rooms: timelines, pages of history, and states at their start."""
