"""The core that every layer may use: errors, names, tokens, clocks, JSON. No I/O, no reactor."""
