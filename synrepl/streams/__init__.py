"""Stream declarations: everything that differs between streams, as data."""
