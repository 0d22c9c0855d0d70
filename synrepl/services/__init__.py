"""The services of a process: coroutines that take their collaborators as parameters."""
