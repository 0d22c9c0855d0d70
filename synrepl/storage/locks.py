"""Advisory locks: who is a writer, and who may still hold an ID that is not settled.

The keys are laid down beside ``synrepl.lock_class`` in the schema.
"""

from __future__ import annotations

LOCK_CLASS_BASE = 1398341632

#: Held exclusively by the session of the process that is the writer.
SESSION = 0

#: Held shared by each transaction that reserves or writes, exclusively to raise the epoch.
TRANSACTION = 1

#: Explicit reservations hold one lock each, numbered from here.
FIRST_RESERVATION = 2


def lock_class(number: int) -> int:
    """The first half of the lock keys of the writer with this number."""
    return LOCK_CLASS_BASE + number
