"""What the processes do: coroutines that name their collaborators."""
