"""Keys of the advisory locks of writers and of reservations.

The schema defines the keys beside ``synrepl.lock_class``.
"""

from __future__ import annotations

LOCK_CLASS_BASE = 1398341632

#: Held exclusively by the session of the process that is the writer.
SESSION = 0

#: Held shared by each transaction that reserves or writes, exclusively to raise the epoch.
TRANSACTION = 1

#: Explicit reservations hold one lock each, with keys from here on.
FIRST_RESERVATION = 2


def lock_class(number: int) -> int:
    """The first half of the lock keys of the writer with this number."""
    return LOCK_CLASS_BASE + number
