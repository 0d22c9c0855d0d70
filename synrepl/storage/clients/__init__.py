"""What Matrix users have besides rooms, in tables."""
