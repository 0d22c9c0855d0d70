"""What a process says and hears on a bus, where everybody hears everything."""
