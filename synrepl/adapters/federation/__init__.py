"""How other servers are reached, and how they reach this one: names, certificates, signed HTTP."""
