"""Masters and workers as processes: configuration, assembly, HTTP endpoints and metrics."""
