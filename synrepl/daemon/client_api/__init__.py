"""The endpoints of Matrix's client-server API."""
