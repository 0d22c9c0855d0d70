"""Writing: leases of writers, reservations, transactions, settlement."""
