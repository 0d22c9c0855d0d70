"""The HTTP endpoints of masters and workers."""
