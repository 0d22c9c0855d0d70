"""The catalogue of streams: everything that differs per stream, as data."""
