"""The interface to facts that services use.

Two things implement it: :class:`synrepl.storage.postgres_store.PostgresStore`
and :class:`synrepl.storage.memory.store.MemoryStore`; one contract suite runs
against both.

How writers stay honest in Postgres (invariants R1, R7, R8 of
``docs/architecture.md``): every (stream, writer) has a number and an epoch in
``synrepl.writers``. A process that writes holds a *session lock* on each of
its numbers for as long as it lives, and whoever holds an ID that is not
settled holds a *reservation lock*: a transaction that reserves inside itself
holds it until it ends, an explicit reservation until it is released. The lock
is always taken before the sequence is asked. So "no reservation lock" read
*after* the sequence's last value proves that every ID up to that value is
settled, whatever became of the processes.
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
    """Part of a range, in token order. ``upto`` is where to go on; facts are never split.

    :ivar is_limited: there is more between ``upto`` and the end that was asked for
    """

    facts: Sequence[Fact]
    upto: Token
    is_limited: bool


@dataclass(frozen=True, slots=True)
class ReservationHolder:
    """The holder of a reservation lock. Two are equal when they hold the same reservation.

    :ivar identity: unique among the reservations of one writer, and the same in each observation
    :ivar description: backend, age and query, for a person; differs between observations
    :ivar transaction_s: age of its transaction in seconds; None for a reservation that is not
        bound to one, or where the age is not visible
    """

    identity: tuple[object, ...]
    description: str = field(compare=False)
    transaction_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WriterState:
    """What the database knows of one writer of a stream.

    :ivar position: the position on record, a lower bound
    :ivar is_held: a process took the writer's session lock and has not given it
        back; if it is not ``is_alive`` it died, and must be fenced before its
        reservations count as settled
    :ivar is_alive: the process that took it last still holds the session lock; a
        successor that has the lock but has not raised the epoch does not count
    :ivar is_removed: it is no writer of the stream any more; only its facts are left
    """

    epoch: int
    position: Token
    is_held: bool
    is_alive: bool
    holders: tuple[ReservationHolder, ...]
    is_removed: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """One consistent look at a stream from outside.

    :ivar last: the last token the sequence gave out, read *before* the locks
    :ivar recorded: the linear position on record, a lower bound
    :ivar trimmed: the last trimmed token; facts at or below it are gone
    :ivar incarnation: of the database's server, in which the stream was moved on to ``floor``
    :ivar floor: everything at or below it is settled: it was given out before the last failover
    """

    last: Token
    recorded: Token
    writers: Mapping[str, WriterState]
    trimmed: Token = 0
    incarnation: int = 1
    floor: Token = 0


class RecordedPositions(NamedTuple):
    """How far a stream is on record: never further than it really is."""

    linear: Token
    writers: Mapping[str, Token]


@dataclass(frozen=True, slots=True)
class NamedFollower:
    """What is on record about a named follower.

    :ivar streams: the names of the streams its lease is for; None for all, or without a lease
    :ivar lease_s: remaining time of its lease in seconds, negative after the end; None without one
    :ivar seen_s: seconds since its process last said that it runs; None if no process ever did
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
    """Where a stream was some time ago; 0 when that is not known.

    :ivar past_keep: everything at or below it is at least as old as what must be kept
    :ivar past_max: everything at or below it is as old as anything may become
    """

    past_keep: Token
    past_max: Token


@dataclass(frozen=True, slots=True)
class TrimResult:
    """What one batch of trimming came to.

    :ivar upto: the last trimmed token now; facts at or below it are gone
    :ivar rows: how many this batch has deleted
    :ivar held_by: the named follower that has not acknowledged the next fact
    """

    upto: Token
    rows: int
    held_by: str | None


@dataclass(frozen=True, slots=True)
class Draft:
    """Facts to be appended together: the rows of each, and the caller's idempotency key."""

    facts: Sequence[Sequence[Row]]
    key: str | None = None


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The answer to a draft: the tokens of its facts, in order.

    :ivar writer: who appended the facts; when ``replayed``, the writer of the first append,
        which may be another one: to wait for the tokens, wait for this writer
    :ivar replayed: the key had been used: nothing new was written
    """

    tokens: Sequence[Token]
    writer: str
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class TransactionResult(Generic[T_co]):
    """A transaction that was committed: what its work returned, and its facts.

    :ivar facts: in order, by the name of the stream; only streams that got some
    """

    result: T_co
    facts: Mapping[str, Sequence[Fact]]


class WriterLease(Protocol):
    """One process's right to write as ``writer`` to some streams, until it is closed or lost."""

    writer: str

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Have ``call(reason)`` called once when the name is lost: every reservation is void."""

    def epoch(self, stream: Stream) -> int:
        """The epoch it writes under: while the store shows this one, nobody else has the name."""

    async def append(
        self, stream: Stream, drafts: Sequence[Draft], floor: Token
    ) -> Sequence[AppendResult]:
        """Reserve and write all drafts in one transaction; all or nothing.

        :param floor: the largest token this process knows of in the stream; a
            sequence found at or below it is moved forward first (R7)
        :raises Fenced: the epoch was raised; :raises DatabaseAway:
        :raises BadValue: a row does not fit; :raises KeyReused:
        """

    async def transact(
        self,
        name: str,
        streams: Sequence[Stream],
        work: Callable[[Transaction, Outbox], T],
        begin: Callable[[], Mapping[str, Token]],
    ) -> TransactionResult[T]:
        """Run ``work`` and append what it puts into its outbox, in one transaction; all or nothing.

        ``work`` may run more than once, as :meth:`~.database.Database.run` says:
        each time with an outbox of its own. A fenced lease changes nothing,
        even when the outbox stays empty. Several may run at once.

        :param streams: those that ``work`` may append to
        :param begin: called each time that work is done, before tokens are asked for,
            perhaps in the thread of the transaction; gives a floor for each stream, as
            in :meth:`append`
        :raises Fenced: the epoch was raised; :raises DatabaseAway:
        :raises KeptInMemory: one of the streams is not in the database
        :raises CommitUnknown: and what ``Database.run`` and ``work`` raise besides
        """

    async def reserve(self, stream: Stream, count: int, floor: Token) -> Sequence[Token]:
        """Take ``count`` ascending tokens that stay reserved until they are written or released."""

    async def write(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Write facts at reserved tokens, in one transaction. Does not release them."""

    async def release(self, stream: Stream, tokens: Sequence[Token]) -> None:
        """Give reserved tokens back, written or not."""

    async def close(self) -> None:
        """Give the writer's name free."""


class FactStore(Protocol):
    """Streams of facts in one database.

    :ivar is_late: False: what it looks up is never older than the look
    """

    is_late: bool

    async def open_writer(self, writer: str, streams: Sequence[Stream]) -> WriterLease:
        """Become ``writer``: take its session locks, raise its epochs, repair its sequences.

        :raises WriterTaken: another live process has the name
        :raises WriterRemoved: it is one of the stream's no more; :raises StreamNotMade:
        """

    async def observe(self, streams: Sequence[Stream]) -> Mapping[str, Observation]:
        """Look at streams from outside; see :class:`Observation`.

        :raises NotConfirmed: the server was promoted or restored; see :meth:`confirm`
        """

    async def confirm(self, announced: Mapping[str, Mapping[str, Token]]) -> int:
        """Confirm a server that was promoted or restored, unless somebody has.

        Every stream is moved on to a *floor* beyond everything that can have been announced,
        and is settled up to there; what has survived for certain goes on record.

        :param announced: how far writers are known to have been announced, by stream
        :returns: the number of the server's incarnation
        """

    async def given_out(self, stream: Stream) -> Token | None:
        """The largest token that can have been given out: by the sequence, in the table, on record.

        The sequence alone may be behind, after a failover or in a restored dump.
        """

    async def fence(self, stream: Stream, writer: str) -> bool:
        """Raise a dead writer's epoch once nothing of it can still commit.

        :returns: False when it turned out to be alive, or a transaction of it still runs
        """

    async def reached(self, stream: Stream, span: Range) -> Mapping[str, Token]:
        """The largest token in ``span`` of each writer that has one there."""

    async def record_positions(
        self, stream: Stream, linear: Token, writers: Mapping[str, Token]
    ) -> None:
        """Put positions on record: where the next process starts from. Never moves one back (R7).

        :raises NotConfirmed:
        """

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Facts in ``span``, of one writer or of all, about ``limit`` rows at a time.

        :raises Trimmed: when the range begins below what has been trimmed, of
            that writer or of all
        :raises FactsLost: when it begins among facts that a failover may have lost, and ends
            beyond them. A range from ``kept`` that ends below ``floor`` gives what is left
        """

    async def follower_positions(self, follower: str) -> Mapping[tuple[str, str], Token]:
        """A named follower's durable positions by (stream, writer)."""

    async def record_follower(
        self, follower: str, positions: Mapping[tuple[str, str], Token]
    ) -> None:
        """Make a follower's positions durable; never moves one back."""

    async def named_followers(self) -> Sequence[NamedFollower]:
        """All named followers, by name."""

    async def renew_lease(
        self, follower: str, streams: Sequence[str] | None, lease_s: float
    ) -> None:
        """Keep for a named follower what it has not acknowledged, for ``lease_s`` seconds from now.

        This is also the heartbeat of its process: see :attr:`NamedFollower.seen_s`.

        What it has on record it has acknowledged: a position of a writer, that
        writer's facts; one of the linear view (writer ""), everybody's.

        :param streams: the names of those that it follows; None for all
        """

    async def mark(self, stream: Stream, keep_s: float, max_s: float) -> AgedPositions:
        """Note where a stream is on record now, and tell where it was ``keep_s`` and ``max_s`` ago.

        To be called now and then; without marks nothing is known to be old. With
        ``keep_s`` 0 all that is on record is old enough.
        """

    async def trim(self, stream: Stream, cap: Token, forced: Token, limit: int) -> TrimResult:
        """Delete the oldest facts, as far as every follower with a lease has acknowledged them.

        All in one transaction; any number of processes may do it at once.

        :param cap: nothing above it goes, nor above the linear position on record
        :param forced: up to here facts go without being acknowledged
        :param limit: about how many rows at most; facts are never split
        """
