"""What a master answers its clients."""
