"""Records of named followers: positions, leases, positions of handlers, and dead letters."""
