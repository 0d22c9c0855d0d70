"""The processes: configuration, wiring, command line. The only place that knows everybody."""
