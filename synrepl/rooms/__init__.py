"""Pure rules of Matrix rooms: no I/O, no clock, no database."""
