"""What settles becomes positions, and lines for followers."""
