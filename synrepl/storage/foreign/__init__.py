"""A real Synapse's database: what feeds its streams, as data, and reading it. Nothing here writes."""
