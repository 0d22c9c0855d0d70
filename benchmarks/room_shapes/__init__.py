"""Ways to store the states of rooms, measured on the same rooms; see docs/adr/0023-states-in-postgres.md.

Run with ``python -m benchmarks room_shapes``.
"""
