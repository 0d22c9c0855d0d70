"""A batch of events judged over the tables, and written with all that it changes."""
