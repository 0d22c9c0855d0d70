"""Writers of a stream: taking and releasing names, fencing, observing.

The keys of advisory locks are defined in the schema, beside ``synrepl.lock_class``. The rules behind
these statements are described in :mod:`synrepl.storage.store`.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from synrepl.core.errors import Refused
from synrepl.core.tokens import Token
from synrepl.storage.database import RaisedByDatabase, Transaction, value
from synrepl.storage.store import (
    Observation,
    RecordedPositions,
    ReservationHolder,
    StreamNotMade,
    WriterRemoved,
    WriterState,
    WriterTaken,
)
from synrepl.storage.tables import sequence_name, table_name
from synrepl.streams.definition import Stream

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


#: Error codes of ``synrepl.add_writer``.
_NO_STREAM, _REMOVED = "SY003", "SY007"


class Claim(NamedTuple):
    """The claim of a process to one writer name of one stream.

    :ivar notify: whether each commit wakes the announcers of other processes
    """

    number: int
    epoch: int
    notify: bool


def register(txn: Transaction, stream: str, writer: str) -> int:
    """The number of a writer, assigned on first use.

    :raises StreamNotMade:
    :raises WriterRemoved:
    """
    try:
        txn.execute("SELECT synrepl.add_writer(%s, %s)", (stream, writer))
    except RaisedByDatabase as error:
        if error.code == _NO_STREAM:
            raise StreamNotMade(stream=stream) from error
        if error.code == _REMOVED:
            raise WriterRemoved(stream=stream, writer=writer) from error
        raise
    txn.execute(
        "SELECT number FROM synrepl._writers WHERE stream = %s AND writer = %s AND NOT removed",
        (stream, writer),
    )
    row = txn.fetchone_or_none()
    if row is None:  # between the two statements
        raise WriterRemoved(stream=stream, writer=writer)
    return int(row[0])


def try_session_lock(txn: Transaction, number: int) -> bool:
    """Try to take a writer's session lock; call it on the session's own connection."""
    return bool(value(txn, "SELECT pg_try_advisory_lock(%s, %s)", (lock_class(number), SESSION)))


def release_session_locks(txn: Transaction, numbers: Sequence[int]) -> None:
    """Release the session locks of writers, and void their reservations.

    A writer with a running transaction is left as if it had died: fencing it waits
    for that transaction.
    """
    for number in numbers:
        key = (lock_class(number), TRANSACTION)
        if not value(txn, "SELECT pg_try_advisory_xact_lock(%s, %s)", key):
            continue
        txn.execute(
            "UPDATE synrepl._writers SET epoch = epoch + 1, held = false, holder = NULL, backend = NULL"
            " WHERE number = %s",
            (number,),
        )
        txn.execute("SELECT pg_advisory_unlock(%s, %s)", (lock_class(number), SESSION))


def release_reservations(txn: Transaction, number: int, locks: Sequence[int]) -> None:
    """Unlock explicit reservations."""
    txn.execute(
        "SELECT pg_advisory_unlock_shared(%s, n) FROM unnest(%s) AS n",
        (lock_class(number), list(locks)),
    )


def enter(txn: Transaction, claim: Claim) -> None:
    """Enter a writing transaction as the claimed writer; the database refuses a fenced one."""
    txn.execute("SELECT synrepl.enter(%s, %s, %s)", claim)


def session_holder(txn: Transaction, number: int) -> str | None:
    """Description of the holder of a writer's session lock; None without one."""
    txn.execute(
        """
        SELECT coalesce(w.holder, a.application_name, '?') || ', Postgres backend ' || l.pid
        FROM pg_locks l
        JOIN synrepl._writers w ON w.number = %s
        LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND l.classid = %s AND l.objid = %s
        """,
        (number, lock_class(number), SESSION),
    )
    row = txn.fetchone_or_none()
    return None if row is None else str(row[0])


def name_holder(txn: Transaction, writer: str | None) -> tuple[str, str] | None:
    """A stream in which a process has the writer name, and a description of the process.

    :param writer: the name; None for any
    :returns: None if no process has it, or the database has no writers yet
    """
    if not value(txn, "SELECT to_regclass('synrepl._writers') IS NOT NULL"):
        return None
    txn.execute(
        """
        SELECT w.stream, coalesce(w.holder, a.application_name, '?') || ', Postgres backend ' || l.pid
        FROM synrepl._writers w
        JOIN pg_locks l ON l.classid = (%s + w.number)::oid AND l.objid = %s
        LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND (w.writer = %s OR %s IS NULL)
        ORDER BY w.stream LIMIT 1
        """,
        (LOCK_CLASS_BASE, SESSION, writer, writer),
    )
    row = txn.fetchone_or_none()
    return None if row is None else (str(row[0]), str(row[1]))


def raise_epoch(txn: Transaction, number: int, holder: str) -> int | None:
    """Take over a writer whose session lock we hold, once no transaction of it still runs.

    :returns: the new epoch; None if the writer was removed meanwhile
    """
    txn.execute("SELECT pg_advisory_xact_lock(%s, %s)", (lock_class(number), TRANSACTION))
    txn.execute(
        "UPDATE synrepl._writers SET epoch = epoch + 1, held = true, died = false, holder = %s,"
        " backend = pg_backend_pid() WHERE number = %s RETURNING epoch",
        (holder, number),
    )
    row = txn.fetchone_or_none()
    return None if row is None else int(row[0])


def is_draining(txn: Transaction, number: int) -> bool:
    """Whether a writer is draining, so that it gets no more tokens."""
    return bool(value(txn, "SELECT draining FROM synrepl._writers WHERE number = %s", (number,)))


def fence(txn: Transaction, stream: str, writer: str) -> bool:
    """Release a dead writer's reservations (invariant R8).

    Both locks are only tried: it returns False if a process is alive, or a transaction
    can still commit.
    """
    txn.execute(
        "SELECT number FROM synrepl._writers WHERE stream = %s AND writer = %s AND held",
        (stream, writer),
    )
    row = txn.fetchone_or_none()
    if row is None:
        return False
    number = int(row[0])
    for half in (SESSION, TRANSACTION):
        if not value(txn, "SELECT pg_try_advisory_xact_lock(%s, %s)", (lock_class(number), half)):
            return False
    txn.execute(
        "UPDATE synrepl._writers SET epoch = epoch + 1, held = false, died = true, holder = NULL,"
        " backend = NULL WHERE number = %s AND held",
        (number,),
    )
    return txn.rowcount == 1


def record_position(txn: Transaction, stream: str, writer: str, position: Token) -> None:
    """Record a writer's position; it is never moved back (R7)."""
    txn.execute(
        "UPDATE synrepl._writers SET position = %s"
        " WHERE stream = %s AND writer = %s AND position < %s",
        (position, stream, writer, position),
    )


def recorded_positions(txn: Transaction, streams: Sequence[str]) -> dict[str, RecordedPositions]:
    """The recorded positions of streams, by name."""
    txn.execute(
        "SELECT s.stream, s.position, w.writer, w.position FROM synrepl._streams s"
        " JOIN synrepl._writers w USING (stream) WHERE s.stream = ANY (%s)",
        (list(streams),),
    )
    linear: dict[str, Token] = {}
    writers: dict[str, dict[str, Token]] = defaultdict(dict)
    for stream, at, writer, position in txn.fetchall():
        linear[stream] = int(at)
        writers[stream][writer] = int(position)
    return {stream: RecordedPositions(at, writers[stream]) for stream, at in linear.items()}


def record_linear(txn: Transaction, stream: str, position: Token) -> None:
    """Record a stream's linear position; it is never moved back (R7)."""
    txn.execute(
        "UPDATE synrepl._streams SET position = %s WHERE stream = %s AND position < %s",
        (position, stream, position),
    )


_OBSERVE = """
SELECT w.stream, w.writer, w.epoch, w.position, w.held, w.removed, s.position, s.trimmed,
       s.incarnation, s.floor, l.pid, l.objid, l.virtualtransaction, l.granted AND l.pid = w.backend,
       CASE WHEN l.objid IS NOT NULL THEN
           concat('backend ', l.pid, ' (', a.application_name, '), in transaction for ',
                  coalesce(date_trunc('second', now() - a.xact_start)::text, '-'), ': ', left(a.query, 200))
       END,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8
FROM synrepl._writers w
JOIN synrepl._streams s USING (stream)
LEFT JOIN pg_locks l
       ON l.locktype = 'advisory' AND l.objsubid = 2
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.classid = (%s + w.number)::oid
LEFT JOIN LATERAL (
    SELECT b.application_name, b.xact_start, b.query FROM pg_stat_get_activity(l.pid) b
    WHERE l.pid IS NOT NULL
) a ON true
WHERE w.stream = ANY(%s)
"""


def given_out(txn: Transaction, stream: Stream) -> Token:
    """The largest token that can have been given out; see :meth:`~.store.FactStore.given_out`."""
    txn.execute(
        "SELECT greatest(s.position, (SELECT max(w.position) FROM synrepl._writers AS w"
        " WHERE w.stream = s.stream)) FROM synrepl._streams AS s WHERE s.stream = %s",
        (stream.name,),
    )
    row = txn.fetchone_or_none()
    if row is None:  # no master has made the stream
        return 0
    edge = "min" if stream.counts_down else "max"
    txn.execute(
        "SELECT greatest("
        f"(SELECT CASE WHEN is_called THEN abs(last_value) END FROM {sequence_name(stream)}),"
        f" (SELECT abs({edge}(stream_id)) FROM {table_name(stream)}), 0)"
    )
    return max(int(row[0]), int(txn.fetchone()[0]))


def observe(txn: Transaction, streams: Sequence[Stream]) -> dict[str, Observation]:
    """Observe streams: sequences first, then locks. The proof depends on this order."""
    if not streams:
        return {}
    parts = [
        f"SELECT %s, CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence_name(s)}"
        for s in streams
    ]
    txn.execute(" UNION ALL ".join(parts), [s.name for s in streams])
    last = {name: abs(int(value)) for name, value in txn.fetchall()}
    txn.execute(_OBSERVE, (LOCK_CLASS_BASE, [s.name for s in streams]))
    recorded, trimmed = dict.fromkeys(last, 0), dict.fromkeys(last, 0)
    floors: dict[str, tuple[int, Token]] = dict.fromkeys(last, (1, 0))
    writers: dict[str, dict[str, WriterState]] = {name: {} for name in last}
    holders: dict[tuple[str, str], list[ReservationHolder]] = {}
    for (
        stream,
        writer,
        epoch,
        position,
        held,
        removed,
        linear,
        gone,
        incarnation,
        floor,
        pid,
        objid,
        vxid,
        ours,
        words,
        age,
    ) in txn.fetchall():
        recorded[stream], trimmed[stream] = int(linear), int(gone)
        floors[stream] = int(incarnation), int(floor)
        known = writers[stream].get(writer)
        # A successor that has the session lock but has not raised the epoch yet does
        # not count: until then its predecessor could still write.
        alive = (objid == SESSION and bool(ours)) or (known is not None and known.is_alive)
        found = holders.setdefault((stream, writer), [])
        if objid is not None and objid >= FIRST_RESERVATION:
            found.append(ReservationHolder((pid, objid), words))
        elif objid == TRANSACTION:
            found.append(ReservationHolder((pid, vxid), words, None if age is None else float(age)))
        writers[stream][writer] = WriterState(
            epoch=int(epoch),
            position=int(position),
            is_alive=alive,
            is_held=bool(held),
            holders=tuple(found),
            is_removed=bool(removed),
        )
    return {
        name: Observation(last[name], recorded[name], writers[name], trimmed[name], *floors[name])
        for name in last
    }


#: The first half of the key of a lock on a master's name: 'SYma', clear of the writers' locks.
STARTUP_CLASS = 0x53596D61


class NameStarting(Refused):
    """{holder} is just starting as {name!r}, too; stop one of them, or give it another instance_name"""


def claim_startup(txn: Transaction, name: str) -> None:
    """Claim a name for start-up, on a session that lives until the name is taken.

    Names are held per stream, so a stream that a second master is about to make cannot show that
    there is a first one. A master therefore holds a lock on its own name while it starts, and
    checks whether another process has the name in any stream.

    It may be called again after a refusal, which may be due to a predecessor whose
    connections are just being closed.

    :raises NameStarting: another process is about to take the name
    :raises WriterTaken: another process has it
    """
    key = zlib.crc32(name.encode())
    if not value(txn, "SELECT pg_try_advisory_lock(%s)", (STARTUP_CLASS << 32 | key,)):
        raise NameStarting(name=name, holder=_starting(txn, key))
    found = name_holder(txn, name)
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
        (STARTUP_CLASS, key),
    )
    row = txn.fetchone_or_none()
    return "another process" if row is None else str(row[0])
