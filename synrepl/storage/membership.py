"""Membership: adding, draining and removing the writers of a stream at run time.

A writer with open reservations is never forgotten. A *draining* writer gets no more
tokens, which the database enforces; those that it holds settle in their own time. A
transaction with an older snapshot does not see that the writer is draining, and would
still get tokens. So the writer is *drained* only when its generation was raised, which
such a transaction cannot miss (``synrepl.refuse_stale_snapshot``). A *removed* writer
was proved to hold nothing, by the locks that fencing takes (:func:`.writers.fence`). It
keeps its row, and with it its position: its facts stay, and followers that were away
must learn how far they go. But it gets another number, so a process that still has the
old number is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from synrepl.core.errors import InputError, Refused, Unavailable
from synrepl.core.tokens import Token
from synrepl.storage import writers
from synrepl.storage.database import Transaction, value
from synrepl.storage.store import WriterState
from synrepl.storage.writers import SESSION, TRANSACTION, lock_class
from synrepl.streams.definition import Stream


class NoSuchWriter(InputError):
    """stream {stream!r} has no writer {writer!r}; 'synrepl writers list' shows which it has"""


class WriterLives(Refused):
    """writer {writer!r} of stream {stream!r} lives, it is {holder}; stop that process, or take the stream out of its stream_writers, and try again"""


class NotDrained(Refused):
    """writer {writer!r} of stream {stream!r} is neither drained nor dead, so it may be about to write; 'synrepl writers drain' first"""


class BroughtBack(Refused):
    """writer {writer!r} of stream {stream!r} was allowed to write again while it was being drained; drain it once more if that was not meant"""


class WriterBusy(Unavailable):
    """writer {writer!r} of stream {stream!r} still has a transaction open in the database; try again when it has ended ('synrepl writers list' shows it)"""


class State(StrEnum):
    """The membership state of a writer."""

    LIVE = "live"  #: a process, or a transaction of plain SQL, writes under this name
    IDLE = "idle"  #: no process has the name
    DRAINING = "draining"  #: it gets no more tokens, and some are not settled
    DRAINED = "drained"  #: it gets no more tokens, and all are proved to be settled
    DEAD = "dead"  #: its process died, and no other has taken the name
    REMOVED = "removed"  #: no process may take the name


@dataclass(frozen=True, slots=True)
class Member:
    """One writer of one stream.

    :ivar position: recorded position, a lower bound; a master records it once a second
    :ivar last_reserved: the last token given to any writer of the stream
    :ivar holder: description of the process that has the name; None without one
    :ivar open: descriptions of unsettled reservations: backend, age and query
    """

    stream: str
    writer: str
    state: State
    position: Token
    last_reserved: Token
    holder: str | None
    open: tuple[str, ...]


def members(txn: Transaction, streams: Sequence[Stream]) -> list[Member]:
    """All writers of streams, including removed ones; streams without a table have none."""
    txn.execute(
        "SELECT stream, writer, holder, draining, drained, died, removed FROM synrepl._writers"
        " WHERE stream = ANY(%s) ORDER BY stream, writer",
        ([stream.name for stream in streams],),
    )
    rows = txn.fetchall()
    made = {row[0] for row in rows}
    seen = writers.observe(txn, [stream for stream in streams if stream.name in made])
    found = []
    for stream, writer, holder, draining, drained, died, removed in rows:
        observed = seen[stream].writers[writer]
        found.append(
            Member(
                stream,
                writer,
                State.REMOVED if removed else _state(observed, draining, drained, died),
                observed.position,
                seen[stream].last,
                holder if observed.is_alive else None,
                tuple(held.description for held in observed.holders),
            )
        )
    return found


def add(txn: Transaction, stream: str, writer: str) -> bool:
    """Allow a writer to write: a new one, a drained one, or a removed one.

    :returns: False if it was allowed already
    :raises StreamNotMade:
    """
    txn.execute(
        "UPDATE synrepl._writers SET draining = false, drained = false, removed = false"
        " WHERE stream = %s AND writer = %s AND (draining OR removed)",
        (stream, writer),
    )
    if txn.rowcount:
        _notify(txn, stream)
        return True
    if _is_known(txn, stream, writer):
        return False
    writers.register(txn, stream, writer)
    _notify(txn, stream)
    return True


def drain(txn: Transaction, stream: str, writer: str) -> None:
    """Give a writer no more tokens once this is committed.

    An observation after that shows all that may still hold one, except for later
    transactions with an older snapshot: :func:`conclude_drain` keeps these out.

    :raises NoSuchWriter:
    """
    txn.execute(
        "UPDATE synrepl._writers SET draining = true"
        " WHERE stream = %s AND writer = %s AND NOT removed",
        (stream, writer),
    )
    if not txn.rowcount:
        raise NoSuchWriter(stream=stream, writer=writer)
    _notify(txn, stream)


def conclude_drain(txn: Transaction, stream: str, writer: str) -> bool:
    """Refuse transactions with a snapshot from before the writer was drained, for good.

    If it returns True and is committed, all tokens of the writer are settled, provided that
    those visible after :func:`drain` were.

    :returns: False if such a transaction holds a token now, or the writer's row is locked
    :raises BroughtBack: the writer was allowed to write again meanwhile
    """
    # An admitted transaction with an old snapshot holds the row; do not wait for it.
    txn.execute(
        "UPDATE synrepl._writers SET drained = true, generation = generation + 1"
        " WHERE number = (SELECT number FROM synrepl._writers"
        " WHERE stream = %s AND writer = %s AND draining FOR UPDATE SKIP LOCKED)",
        (stream, writer),
    )
    if txn.rowcount:
        return True
    sql = "SELECT draining FROM synrepl._writers WHERE stream = %s AND writer = %s"
    if not value(txn, sql, (stream, writer)):
        raise BroughtBack(stream=stream, writer=writer)
    return False


def remove(txn: Transaction, stream: str, writer: str) -> None:
    """Remove a writer that provably holds nothing, and never will (invariant R8).

    Its row is locked before the advisory locks are tried, in the same order as plain SQL
    with an old snapshot, so neither waits for the other.

    :raises NoSuchWriter:
    :raises NotDrained:
    :raises WriterLives: a process has its name
    :raises WriterBusy: a transaction of it runs
    """
    if not _is_known(txn, stream, writer):
        raise NoSuchWriter(stream=stream, writer=writer)
    txn.execute(
        "SELECT number, draining OR died OR held FROM synrepl._writers"
        " WHERE stream = %s AND writer = %s AND NOT removed FOR UPDATE SKIP LOCKED",
        (stream, writer),
    )
    row = txn.fetchone_or_none()
    if row is None:
        raise WriterBusy(stream=stream, writer=writer)
    number, may_go = row
    if not _try_lock(txn, number, SESSION):
        holder = writers.session_holder(txn, number) or "held by a process that is just leaving"
        raise WriterLives(stream=stream, writer=writer, holder=holder)
    if not _try_lock(txn, number, TRANSACTION):
        raise WriterBusy(stream=stream, writer=writer)
    if not may_go:
        raise NotDrained(stream=stream, writer=writer)
    txn.execute(
        "UPDATE synrepl._writers SET number = DEFAULT, epoch = epoch + 1, removed = true,"
        " draining = false, drained = false, died = false, held = false, holder = NULL, backend = NULL"
        " WHERE number = %s",
        (number,),
    )
    _notify(txn, stream)


def _state(observed: WriterState, draining: bool, drained: bool, died: bool) -> State:
    if observed.is_held and not observed.is_alive:
        return State.DEAD
    if draining:
        return State.DRAINED if drained else State.DRAINING
    if observed.is_alive or observed.holders:
        return State.LIVE
    return State.DEAD if died else State.IDLE


def _is_known(txn: Transaction, stream: str, writer: str) -> bool:
    sql = (
        "SELECT EXISTS (SELECT FROM synrepl._writers"
        " WHERE stream = %s AND writer = %s AND NOT removed)"
    )
    return bool(value(txn, sql, (stream, writer)))


def _try_lock(txn: Transaction, number: int, half: int) -> bool:
    return bool(value(txn, "SELECT pg_try_advisory_xact_lock(%s, %s)", (lock_class(number), half)))


def _notify(txn: Transaction, stream: str) -> None:
    """Wake the announcers of the stream."""
    txn.execute("SELECT pg_notify('synrepl', %s)", (stream,))
