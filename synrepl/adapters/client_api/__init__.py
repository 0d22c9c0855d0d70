"""The transport of Matrix's client-server API: errors, CORS, access tokens, bodies and rate limits."""
