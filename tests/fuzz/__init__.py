"""Coverage-guided fuzzing of the room rules; see README.md."""
