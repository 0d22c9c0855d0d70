"""The interface of stores of facts, as services use it.

Two classes implement it: :class:`synrepl.storage.postgres.store.PostgresStore`
and :class:`synrepl.storage.memory.store.MemoryStore`; one contract suite runs
against both.

How writers stay honest in Postgres (invariants R1, R7, R8 of
``docs/architecture.md``): every (stream, writer) has a number and an epoch in
``synrepl._writers``. A process that writes holds a *session lock* on each of
its numbers for its lifetime, and the holder of an unsettled ID holds a
*reservation lock*: a transaction that reserves IDs holds it until it ends, an
explicit reservation until it is released. The lock is always taken before the
sequence is used. So "no reservation lock" read *after* the sequence's last value
proves that every ID up to that value is settled, whatever happened to the processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from synrepl.core.errors import Refused, StorageError, Unavailable
from synrepl.core.tokens import Range, Token
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox as Outbox
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class DatabaseAway(Unavailable):
    """the database at {where} cannot be reached: {reason}"""


class WriterTaken(Refused):
    """writer {writer!r} of stream {stream!r} is held by {holder}; stop that process, or give this one another instance_name"""


class Fenced(Refused):
    """writer {writer!r} of stream {stream!r} was fenced off (its epoch is {current}, this process has {epoch}): another process found it dead and released its reservations; nothing was written; this process takes the name back, try again"""


class Drained(Refused):
    """writer {writer!r} of stream {stream!r} is drained: it takes no new facts; append at another writer, or let this one write again by 'synrepl writers add'"""


class WriterRemoved(Refused):
    """writer {writer!r} of stream {stream!r} was removed; take it out of stream_writers, or bring it back by 'synrepl writers add'"""


class StreamNotMade(Unavailable):
    """stream {stream!r} is not in the database yet; start a master whose configuration has it"""


class BadValue(StorageError):
    """{where} does not fit its column: {reason}"""


class Trimmed(StorageError):
    """stream {stream!r} has been trimmed up to {trimmed}; what lies above {after} can no longer be given in full"""


class NotConfirmed(Unavailable):
    """the database is not confirmed: {reason}; a running master confirms it, and without one 'synrepl schema confirm' does"""


class OlderServer(Unavailable):
    """the database is at incarnation {found}, this process has seen {newest}: this is the server from before a failover; stop it, or correct where the DSN or the proxy leads"""


class FactsLost(StorageError):
    """a failover of the database lost facts of stream {stream!r} above token {kept}: what was seen of it above {kept} up to {after} may not exist any more; go on from {kept}, tokens continue above {floor}"""

    @property
    def kept(self) -> Token:
        """Everything at or below it has survived."""
        return int(str(self.facts["kept"]))

    @property
    def floor(self) -> Token:
        """Everything between :attr:`kept` and it was given out before the failover."""
        return int(str(self.facts["floor"]))


class KeyReused(Refused):
    """idempotency key {key!r} was used before with other rows; use a new key for a new request"""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a range, in token order. Facts are never split.

    :ivar upto: the position to continue from
    :ivar is_limited: whether there is more between ``upto`` and the end of the range
    """

    facts: Sequence[Fact]
    upto: Token
    is_limited: bool


@dataclass(frozen=True, slots=True)
class ReservationHolder:
    """The holder of a reservation lock. Two are equal if they hold the same reservation.

    :ivar identity: unique among the reservations of one writer, and stable over observations
    :ivar description: backend, age and query, for messages; differs between observations
    :ivar transaction_s: age of its transaction in seconds; None for a reservation that is not
        bound to one, or where the age is not visible
    """

    identity: tuple[object, ...]
    description: str = field(compare=False)
    transaction_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WriterState:
    """The database's state of one writer of a stream.

    :ivar position: the recorded position, a lower bound
    :ivar is_held: a process took the writer's session lock and has not released it; if
        it is not ``is_alive``, it died, and must be fenced before its reservations
        count as settled
    :ivar is_alive: the process that took the lock last still holds it; a successor
        that has the lock but has not raised the epoch does not count
    :ivar is_removed: it is no longer a writer of the stream; only its facts are left
    """

    epoch: int
    position: Token
    is_held: bool
    is_alive: bool
    holders: tuple[ReservationHolder, ...]
    is_removed: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """One consistent observation of a stream in the database.

    :ivar last: the last token that the sequence gave out, read *before* the locks
    :ivar recorded: the recorded linear position, a lower bound
    :ivar trimmed: the last trimmed token; facts at or below it are gone
    :ivar incarnation: of the server, in which the stream was advanced to ``floor``
    :ivar floor: everything at or below it is settled: it was given out before the last failover
    """

    last: Token
    recorded: Token
    writers: Mapping[str, WriterState]
    trimmed: Token = 0
    incarnation: int = 1
    floor: Token = 0


class RecordedPositions(NamedTuple):
    """The recorded positions of a stream, which are lower bounds."""

    linear: Token
    writers: Mapping[str, Token]


@dataclass(frozen=True, slots=True)
class NamedFollower:
    """The records of a named follower.

    :ivar streams: names of the streams of its lease; None for all, or without a lease
    :ivar lease_s: remaining time of its lease in seconds, negative after the end; None without one
    :ivar seen_s: seconds since the last heartbeat of its process; None if there was none
    :ivar positions: its positions by stream and writer
    :ivar handlers: positions of its handlers by handler, stream and writer, including those of
        handlers that are no longer configured
    """

    name: str
    streams: frozenset[str] | None
    lease_s: float | None
    seen_s: float | None
    positions: Mapping[tuple[str, str], Token]
    handlers: Mapping[tuple[str, str, str], Token]


@dataclass(frozen=True, slots=True)
class AgedPositions:
    """Past positions of a stream; 0 where they are not known.

    :ivar past_keep: everything at or below it is older than the minimum retention
    :ivar past_max: everything at or below it is older than the maximum retention
    """

    past_keep: Token
    past_max: Token


@dataclass(frozen=True, slots=True)
class TrimResult:
    """The result of trimming one batch.

    :ivar upto: the last trimmed token now; facts at or below it are gone
    :ivar rows: number of rows deleted by this batch
    :ivar held_by: the named follower that has not acknowledged the next fact
    """

    upto: Token
    rows: int
    held_by: str | None


@dataclass(frozen=True, slots=True)
class Draft:
    """Facts to be appended together: the rows of each fact, and the caller's idempotency key."""

    facts: Sequence[Sequence[Row]]
    key: str | None = None


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The result of appending a draft: the tokens of its facts, in order.

    :ivar writer: the writer of the facts; when ``replayed``, that of the first append, which
        may be another one. To wait for the tokens, wait for this writer
    :ivar replayed: whether the key was used before, so nothing new was written
    """

    tokens: Sequence[Token]
    writer: str
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class TransactionResult(Generic[T_co]):
    """The result of a committed transaction.

    :ivar result: the return value of its work
    :ivar facts: its facts in order, by stream name; streams without facts are left out
    """

    result: T_co
    facts: Mapping[str, Sequence[Fact]]


def tokens_of(facts: Mapping[str, Sequence[Fact]]) -> dict[str, list[Token]]:
    """The tokens of facts, by stream name."""
    return {stream: [fact.token for fact in several] for stream, several in facts.items()}


class WriterLease(Protocol):
    """The lease of a writer name for some streams, until it is closed or lost."""

    writer: str

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Call ``call(reason)`` once when the name is lost, which voids every reservation."""

    def epoch(self, stream: Stream) -> int:
        """The epoch of the lease: while the store has the same epoch, nobody else has the name."""

    async def append(
        self, stream: Stream, drafts: Sequence[Draft], floor: Token
    ) -> Sequence[AppendResult]:
        """Reserve tokens for all drafts and write them in one transaction, all or nothing.

        :param floor: the largest token of the stream that this process knows; a
            sequence at or below it is moved forward first (R7)
        :raises Fenced: the epoch was raised
        :raises DatabaseAway:
        :raises BadValue: a row does not fit
        :raises KeyReused:
        """

    async def transact(
        self,
        name: str,
        streams: Sequence[Stream],
        work: Callable[[Transaction, Outbox], T],
        begin: Callable[[], Mapping[str, Token]],
    ) -> TransactionResult[T]:
        """Run ``work`` and append the facts in its outbox, in one transaction, all or nothing.

        ``work`` may run more than once, as with :meth:`~.database.Database.run`,
        each time with a new outbox. A fenced lease changes nothing, even if the
        outbox stays empty. Several transactions may run at once. What ``work`` registered with
        ``Outbox.after_reserving`` is called before the commit.

        :param streams: streams that ``work`` may append to
        :param begin: called each time after ``work``, before tokens are reserved, possibly
            in the thread of the transaction; returns the floor of each stream, as in
            :meth:`append`
        :raises Fenced: the epoch was raised
        :raises DatabaseAway:
        :raises KeptInMemory: one of the streams is not in the database
        :raises CommitUnknown: and the other errors of ``Database.run`` and ``work``
        """

    async def reserve(self, stream: Stream, count: int, floor: Token) -> Sequence[Token]:
        """Reserve ``count`` ascending tokens until they are released."""

    async def write(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Write facts at reserved tokens, in one transaction. Does not release them."""

    async def release(self, stream: Stream, tokens: Sequence[Token]) -> None:
        """Release reserved tokens, written or not."""

    async def close(self) -> None:
        """Release the writer name."""


class FactStore(Protocol):
    """Streams of facts in one database.

    :ivar is_late: always False: reads are never out of date
    """

    is_late: bool

    async def open_writer(self, writer: str, streams: Sequence[Stream]) -> WriterLease:
        """Become ``writer``: take its session locks, raise its epochs, repair its sequences.

        :raises WriterTaken: another live process has the name
        :raises WriterRemoved: it was removed from the stream
        :raises StreamNotMade:
        """

    async def observe(self, streams: Sequence[Stream]) -> Mapping[str, Observation]:
        """Observe streams; see :class:`Observation`.

        :raises NotConfirmed: the server was promoted or restored; see :meth:`confirm`
        """

    async def confirm(self, announced: Mapping[str, Mapping[str, Token]]) -> int:
        """Confirm a server that was promoted or restored, unless it is confirmed.

        Every stream is advanced to a *floor* beyond everything that can have been announced,
        and is settled up to there. The tokens that certainly survived are recorded.

        :param announced: known announced positions by stream and writer
        :returns: the number of the server's incarnation
        """

    async def given_out(self, stream: Stream) -> Token | None:
        """The largest token that can have been given out, by sequence, table and records.

        After a failover or in a restored dump, the sequence alone may be behind.
        """

    async def fence(self, stream: Stream, writer: str) -> bool:
        """Raise a dead writer's epoch once no transaction of it can still commit.

        :returns: False if it is alive after all, or a transaction of it still runs
        """

    async def reached(self, stream: Stream, span: Range) -> Mapping[str, Token]:
        """The largest token in ``span`` of each writer that has one there."""

    async def record_positions(
        self, stream: Stream, linear: Token, writers: Mapping[str, Token]
    ) -> None:
        """Record positions, from which the next process starts. None is moved back (R7).

        :raises NotConfirmed:
        """

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """A page of about ``limit`` rows of the facts in ``span``, of one writer or of all.

        :raises Trimmed: the range begins below the trimmed position, of that writer or of all
        :raises FactsLost: it begins among facts that a failover may have lost, and ends
            beyond them. A range from ``kept`` that ends below ``floor`` returns what is left
        """

    async def follower_positions(self, follower: str) -> Mapping[tuple[str, str], Token]:
        """A named follower's durable positions by (stream, writer)."""

    async def record_follower(
        self, follower: str, positions: Mapping[tuple[str, str], Token]
    ) -> None:
        """Record a follower's positions; none is moved back."""

    async def named_followers(self) -> Sequence[NamedFollower]:
        """All named followers, by name."""

    async def renew_lease(
        self, follower: str, streams: Sequence[str] | None, lease_s: float
    ) -> None:
        """Retain facts that a named follower has not acknowledged, for ``lease_s`` seconds.

        This is also the heartbeat of its process: see :attr:`NamedFollower.seen_s`.

        Recorded positions acknowledge facts: that of a writer, this writer's facts;
        that of the linear view (writer ""), those of all writers.

        :param streams: names of the streams that it follows; None for all
        """

    async def mark(self, stream: Stream, keep_s: float, max_s: float) -> AgedPositions:
        """Mark the stream's current position, and return those ``keep_s`` and ``max_s`` seconds ago.

        Call it regularly; without marks no age is known. With ``keep_s`` 0, everything
        recorded is old enough.
        """

    async def trim(self, stream: Stream, cap: Token, forced: Token, limit: int) -> TrimResult:
        """Delete the oldest facts, as far as every follower with a lease has acknowledged them.

        It runs in one transaction; any number of processes may call it at once.

        :param cap: facts above it stay, as do those above the recorded linear position
        :param forced: facts up to it are deleted without being acknowledged
        :param limit: approximate maximum number of rows; facts are never split
        """
