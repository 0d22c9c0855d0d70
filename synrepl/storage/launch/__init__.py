"""Other people's servers as children of this process: standard library only, blocking calls."""
