"""Who the writers of a stream are: added, drained and removed while the system runs.

Nobody forgets a writer whose reservations are open. *Draining* is one that gets no
more tokens, which the database sees to; what it holds by then settles in its own
time. A transaction with a snapshot from before does not see that it is draining, and
would still get tokens; so it is *drained* only when its generation was raised, which
such a transaction cannot miss (``synrepl.refuse_stale_snapshot``). *Removed* is one that was proved to hold nothing, by the locks that fencing
takes (:func:`.writers.fence`). A removed writer keeps its row, and with it its
position: its facts stay, and followers that were away must learn how far they go.
But its number is another one, so whoever still has the old number is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from synrepl.core.errors import InputError, Refused, Unavailable
from synrepl.core.tokens import Token
from synrepl.storage import writers
from synrepl.storage.database import Transaction
from synrepl.storage.locks import SESSION, TRANSACTION, lock_class
from synrepl.storage.sql import value
from synrepl.storage.store import WriterState
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
    """How a writer is, in one word."""

    LIVE = "live"  #: a process is it, or a transaction of plain SQL
    IDLE = "idle"  #: nobody is it now
    DRAINING = "draining"  #: it gets no more tokens, and has not settled all that it has
    DRAINED = "drained"  #: it gets no more tokens, and is proved to have settled all it had
    DEAD = "dead"  #: its process died, and nobody has taken the name since
    REMOVED = "removed"  #: nobody is it any more, nor may be


@dataclass(frozen=True, slots=True)
class Member:
    """One writer of one stream.

    :ivar position: on record, a lower bound; a master puts it there once a second
    :ivar last_reserved: the last token that any writer of the stream was given
    :ivar holder: the process that is the writer, for a person; None when none is
    :ivar open: what is not settled: backend, age and query, for a person
    """

    stream: str
    writer: str
    state: State
    position: Token
    last_reserved: Token
    holder: str | None
    open: tuple[str, ...]


def members(txn: Transaction, streams: Sequence[Stream]) -> list[Member]:
    """All writers of streams, removed ones too; streams that have no table yet have none."""
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
    """Let a writer write: a new one, a drained one, or one that was removed.

    :returns: False when it could already
    :raises StreamNotMade:
    """
    txn.execute(
        "UPDATE synrepl._writers SET draining = false, drained = false, removed = false"
        " WHERE stream = %s AND writer = %s AND (draining OR removed)",
        (stream, writer),
    )
    if txn.rowcount:
        _tell(txn, stream)
        return True
    if _is_known(txn, stream, writer):
        return False
    writers.register(txn, stream, writer)
    _tell(txn, stream)
    return True


def drain(txn: Transaction, stream: str, writer: str) -> None:
    """Let a writer take no more tokens, from when this is committed.

    Who looks after that sees all who may still hold one, but for transactions with an older
    snapshot that come later: :func:`conclude_drain` keeps these out.

    :raises NoSuchWriter:
    """
    txn.execute(
        "UPDATE synrepl._writers SET draining = true"
        " WHERE stream = %s AND writer = %s AND NOT removed",
        (stream, writer),
    )
    if not txn.rowcount:
        raise NoSuchWriter(stream=stream, writer=writer)
    _tell(txn, stream)


def conclude_drain(txn: Transaction, stream: str, writer: str) -> bool:
    """Keep out, for good, transactions with a snapshot from before the writer was drained.

    When it returns True and is committed, all tokens of the writer are settled, provided that
    those were which could be seen after :func:`drain`.

    :returns: False when such a transaction has a token just now, or the writer's row is busy
    :raises BroughtBack: the writer was allowed to write again meanwhile
    """
    # A transaction with an old snapshot that was let in holds the row; it is not waited for.
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
    """Forget a writer that is proved to hold nothing, and never will (invariant R8).

    Its row is locked before the advisory locks are tried, as plain SQL with an
    old snapshot does, so neither waits for the other.

    :raises NoSuchWriter: :raises NotDrained:
    :raises WriterLives: a process has its name; :raises WriterBusy: a transaction of it runs
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
    _tell(txn, stream)


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


def _tell(txn: Transaction, stream: str) -> None:
    """Have those who announce the stream look at it."""
    txn.execute("SELECT pg_notify('synrepl', %s)", (stream,))
