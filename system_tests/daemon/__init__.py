"""Masters and workers as processes."""
