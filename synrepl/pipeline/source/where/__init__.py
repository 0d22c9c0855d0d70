"""The option ``where``: a condition on rows that the database applies."""
