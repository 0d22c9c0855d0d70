"""What Matrix users have besides rooms: their identity and their own data."""
