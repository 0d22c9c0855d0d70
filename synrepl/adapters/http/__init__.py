"""The HTTP server and client."""
