"""State groups: their forest, what is wrong in it, and a plan with fewer rows."""
