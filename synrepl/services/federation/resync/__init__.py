"""Completes partial rooms in the background."""
