"""Refuses a second master of the same name before it changes anything in the database.

Writer names are held per stream (:mod:`synrepl.storage.writers`), so a stream that a second
master is about to make cannot show that there is a first one. A master therefore holds a
lock on its own name while it starts, and checks whether another process has the name in any
stream.
"""

from __future__ import annotations

import zlib

from synrepl.core.errors import Refused
from synrepl.storage import writers
from synrepl.storage.database import Transaction
from synrepl.storage.sql import value
from synrepl.storage.store import WriterTaken

#: The first half of the lock's key: 'SYma', clear of the writers' locks.
_CLASS = 0x53596D61


class NameStarting(Refused):
    """{holder} is just starting as {name!r}, too; stop one of them, or give it another instance_name"""


def claim_startup(txn: Transaction, name: str) -> None:
    """Claim a name for start-up, on a session that lives until the name is taken.

    It may be called again after a refusal, which may be due to a predecessor whose
    connections are just being closed.

    :raises NameStarting: another process is about to take the name
    :raises WriterTaken: another process has it
    """
    key = zlib.crc32(name.encode())
    if not value(txn, "SELECT pg_try_advisory_lock(%s)", (_CLASS << 32 | key,)):
        raise NameStarting(name=name, holder=_starting(txn, key))
    found = writers.name_holder(txn, name)
    if found is not None:
        stream, holder = found
        raise WriterTaken(writer=name, stream=stream, holder=holder)


def _starting(txn: Transaction, key: int) -> str:
    """Description of the lock's holder."""
    txn.execute(
        "SELECT coalesce(a.application_name, '?') || ', Postgres backend ' || l.pid"
        " FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid"
        " WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND l.classid = %s::oid AND l.objid = %s::bigint::oid",
        (_CLASS, key),
    )
    row = txn.fetchone_or_none()
    return "another process" if row is None else str(row[0])
