"""Takes in what other servers send: events, EDUs, and the events that these lack."""
