"""Writers that come and go while the system runs."""
