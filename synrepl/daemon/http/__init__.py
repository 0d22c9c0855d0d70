"""The HTTP listener of masters and workers: its routes and the status page."""
