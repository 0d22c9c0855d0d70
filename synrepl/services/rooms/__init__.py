"""Rooms in the store, as coroutines: persisting events and reading them."""
