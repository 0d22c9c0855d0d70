"""The interface to facts that services use.

Two things implement it: :class:`synrepl.storage.postgres_store.PostgresStore`
and :class:`synrepl.storage.memory_store.MemoryStore`; one contract suite runs
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
from dataclasses import dataclass
from typing import Protocol

from synrepl.core.errors import Refused, StorageError, Unavailable
from synrepl.core.tokens import Range, Token
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row


class DatabaseAway(Unavailable):
    """the database at {where} cannot be reached: {reason}"""


class WriterTaken(Refused):
    """writer {writer!r} of stream {stream!r} is held by {holder}; stop that process, or give this one another instance_name"""


class Fenced(Refused):
    """writer {writer!r} of stream {stream!r} was fenced off (its epoch is {current}, this process has {epoch}): another process found it dead and released its reservations; nothing was written, restart this process"""


class BadValue(StorageError):
    """{where} does not fit its column: {reason}"""


class Trimmed(StorageError):
    """stream {stream!r} has been trimmed up to {trimmed}; what lies above {after} can no longer be given in full"""


class KeyReused(Refused):
    """idempotency key {key!r} was used before with other rows; use a new key for a new request"""


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a range, in token order. ``upto`` is where to go on; facts are never split.

    :ivar limited: there is more between ``upto`` and the end that was asked for
    """

    facts: Sequence[Fact]
    upto: Token
    limited: bool


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody who holds a reservation lock: stable for as long as this one reservation lives.

    :ivar identity: equal in two observations only when it is the same reservation
    :ivar describe: backend, age and query, for a person
    """

    identity: tuple[object, ...]
    describe: str


@dataclass(frozen=True, slots=True)
class WriterState:
    """What the database knows of one writer of a stream.

    :ivar position: the position on record, a lower bound
    :ivar held: a process took the writer's session lock and has not given it
        back; if it is not ``alive`` it died, and must be fenced before its
        reservations count as settled
    :ivar alive: the process that took it last still holds the session lock; a
        successor that has the lock but has not raised the epoch does not count
    """

    epoch: int
    position: Token
    held: bool
    alive: bool
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """One consistent look at a stream from outside.

    :ivar last: the last token the sequence gave out, read *before* the locks
    :ivar recorded: the linear position on record, a lower bound
    """

    last: Token
    recorded: Token
    writers: Mapping[str, WriterState]


@dataclass(frozen=True, slots=True)
class Draft:
    """Facts to be appended together: the rows of each, and the caller's idempotency key."""

    facts: Sequence[Sequence[Row]]
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """The answer to a draft: the tokens of its facts, in order.

    :ivar replayed: the key had been used: nothing new was written
    """

    tokens: Sequence[Token]
    replayed: bool = False


class WriterLease(Protocol):
    """One process's right to write as ``writer`` to some streams, until it is closed or lost."""

    writer: str

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Have ``call(reason)`` called once when the name is lost: every reservation is void."""

    async def append(
        self, stream: Stream, drafts: Sequence[Draft], floor: Token
    ) -> Sequence[Written]:
        """Reserve and write all drafts in one transaction; all or nothing.

        :param floor: the largest token this process knows of in the stream; a
            sequence found at or below it is moved forward first (R7)
        :raises Fenced: the epoch was raised; :raises DatabaseAway:
        :raises BadValue: a row does not fit; :raises KeyReused:
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
    """Streams of facts in one database."""

    async def open_writer(self, writer: str, streams: Sequence[Stream]) -> WriterLease:
        """Become ``writer``: take its session locks, raise its epochs, repair its sequences.

        :raises WriterTaken: another live process has the name
        """

    async def observe(self, streams: Sequence[Stream]) -> Mapping[str, Observation]:
        """Look at streams from outside; see :class:`Observation`."""

    async def fence(self, stream: Stream, writer: str) -> bool:
        """Raise a dead writer's epoch once nothing of it can still commit.

        :returns: False when it turned out to be alive, or a transaction of it still runs
        """

    async def reached(self, stream: Stream, span: Range) -> Mapping[str, Token]:
        """The largest token in ``span`` of each writer that has one there."""

    async def record_positions(
        self, stream: Stream, linear: Token, writers: Mapping[str, Token]
    ) -> None:
        """Put positions on record: where the next process starts from. Never moves one back (R7)."""

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Facts in ``span``, of one writer or of all, about ``limit`` rows at a time.

        :raises Trimmed: when the range begins below what has been trimmed
        """

    async def follower_positions(self, follower: str) -> Mapping[tuple[str, str], Token]:
        """A named follower's durable positions by (stream, writer)."""

    async def record_follower(
        self, follower: str, positions: Mapping[tuple[str, str], Token]
    ) -> None:
        """Make a follower's positions durable; never moves one back."""
