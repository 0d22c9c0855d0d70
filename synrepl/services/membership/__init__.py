"""Adding, draining and removing writers at run time."""
