"""Partitions of destinations: each is owned by one sending process at a time."""

from __future__ import annotations

from hashlib import blake2b

#: Number of partitions. The table has a row for each, so another number takes a migration.
PARTITIONS = 64


def partition_of(destination: str) -> int:
    """The partition of a destination; the same in every process and release."""
    name = destination.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=4).digest(), "big") % PARTITIONS
