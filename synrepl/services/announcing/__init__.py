"""Announcing: settled facts become positions, and lines for followers."""
