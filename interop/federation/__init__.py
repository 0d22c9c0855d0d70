"""Federation of our processes with a real Synapse, over TLS on loopback."""
