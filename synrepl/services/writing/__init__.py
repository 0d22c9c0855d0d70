"""Facts from callers to the tables: names, reservations, transactions, settlement."""
