"""The parts of ``interop`` that need no real server."""
