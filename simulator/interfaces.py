"""The interfaces between the simulator and the services it runs.

The simulator knows the product's services only by these protocols. A :class:`ServiceFactory` makes them:
:mod:`simulator.product` assembles the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from simulator.application import Application
from simulator.clock import Process
from simulator.network import ClientFactory, ServerFactory
from simulator.position_checker import AnnouncementListener
from simulator.transcript import ProcessLog
from synrepl.core.tokens import Range, Token
from synrepl.storage.database import Database, Transaction
from synrepl.storage.store import AppendResult, FactStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from synrepl.testing.memory_pubsub import MemoryPubSubOwner

T = TypeVar("T")
Key = tuple[str, str]

#: Maximum line length in bytes, the smallest allowed, and maximum queued lines of a slow reader.
LINE_LIMIT = 256
QUEUED_LINES = 25


@dataclass(frozen=True, slots=True)
class RetentionPeriods:
    """Retention of ephemeral streams.

    :ivar every_s: seconds between two rounds of trimming
    :ivar keep_s: minimum age of trimmed facts, in seconds
    :ivar max_s: age from which facts are trimmed even if followers need them, in seconds
    :ivar lease_s: seconds for which the facts that a named follower needs are kept
    """

    every_s: float
    keep_s: float
    max_s: float
    lease_s: float


class BusConnection(Protocol):
    """A process's connections to Redis; see :class:`synrepl.daemon.process_bus.BusConnection`."""

    fault: str | None
    connections: int
    cut_off: int

    def start(self) -> None:
        """Connect, and reconnect whenever the connections are lost."""

    async def stop(self) -> None:
        """Close the connections."""


@dataclass(frozen=True, slots=True)
class BusAccess:
    """A process's access to Redis.

    :ivar join: connects, given the channels to subscribe to and the owner of the connections
    :ivar per_stream: whether there is a channel per stream
    """

    join: Callable[[Collection[str], MemoryPubSubOwner], BusConnection]
    per_stream: bool


@dataclass(frozen=True, slots=True)
class ProcessEnvironment:
    """The environment of a process.

    :ivar process: its scheduler
    :ivar store: the fact store
    :ivar database: for recorded positions and transactional handlers
    :ivar application: the application with the caches; None in a run without caches
    :ivar bus: None for a process without Redis
    :ivar small: whether pages and buffers are small, so that few facts fill them
    """

    process: Process
    store: FactStore
    database: Database
    log: ProcessLog
    catalogue: Catalogue
    application: Application | None
    retention: RetentionPeriods
    bus: BusAccess | None
    small: bool


#: Wraps an announcement listener with a checker.
WrapListener = Callable[[AnnouncementListener], AnnouncementListener]


class HandlerCallbacks(Protocol):
    """The work of one of a follower's handlers; it may be slow, and may fail."""

    async def handle(
        self, stream: str, writer: str, after: Token, upto: Token, facts: Sequence[Fact]
    ) -> None:
        """Handle a batch outside of any transaction."""

    def apply(
        self,
        txn: object,
        stream: str,
        writer: str,
        after: Token,
        upto: Token,
        facts: Sequence[Fact],
    ) -> None:
        """Apply a batch in a transaction of :class:`~.follower_database.FollowerDatabase`."""

    def reset(self, stream: str, writer: str, position: Token, lost: Range | None) -> None:
        """Facts up to ``position`` were trimmed; or a failover may have lost those in ``lost``."""


@dataclass(frozen=True, slots=True)
class HandlerKind:
    """The properties of a handler.

    :ivar exactly_once: whether it is transactional
    :ivar other_view: whether it gets the view that its connection does not have
    :ivar late: whether it is added at its follower's first restart, and starts at the beginning
    """

    name: str
    exactly_once: bool
    other_view: bool
    late: bool


@dataclass(frozen=True, slots=True)
class FollowerKind:
    """The properties of a follower.

    :ivar legacy: whether it speaks the legacy dialect and gets the linear view
    :ivar named: whether its positions are recorded
    :ivar handlers: with transactional ones only when it is named
    :ivar earliest: whether it starts at the beginning
    :ivar slow_s: maximum seconds per batch of its handlers
    :ivar fails: probability that a handler fails
    :ivar bus: whether it follows over Redis instead of TCP
    :ivar writes: whether it is a writer as well
    """

    legacy: bool
    named: bool
    handlers: Sequence[HandlerKind]
    earliest: bool
    slow_s: float
    fails: float
    bus: bool
    writes: bool


class ReservedTokens(Protocol):
    """Reserved tokens."""

    tokens: Sequence[Token]

    async def write(self, facts: Sequence[Sequence[Row]]) -> None:
        """Write facts at the first of the tokens."""

    async def __aenter__(self) -> ReservedTokens: ...

    async def __aexit__(self, *error: Any) -> object: ...


class InvalidationOutbox(Protocol):
    """Collects invalidations and facts that take effect when a change commits."""

    def invalidate(self, cache: str, key: Sequence[Any]) -> None:
        """Invalidate the entries of a key."""

    def invalidate_all(self, cache: str) -> None:
        """Invalidate the whole cache."""

    def append(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Append a fact."""


class WriterService(Protocol):
    """The writer of a process."""

    async def start(self) -> None:
        """Take the writer name."""

    async def append(
        self, stream: Stream, facts: Sequence[Sequence[Row]], key: str | None
    ) -> AppendResult:
        """Append facts; returns tokens and writer once they are committed."""

    async def change(
        self,
        name: str,
        work: Callable[[Transaction, InvalidationOutbox], T],
        streams: Sequence[Stream],
    ) -> T:
        """Run a transaction that invalidates caches."""

    async def reserve(self, stream: Stream, count: int) -> ReservedTokens:
        """Reserve tokens."""

    def positions(self) -> Mapping[Key, Token]:
        """Its own positions."""

    async def stop(self) -> None:
        """Release the writer name."""


class MasterService(Protocol):
    """A master, with a writer of its own."""

    writer: WriterService
    #: Makes the protocol of each connection.
    listener: ServerFactory

    async def start(self) -> None:
        """Start; returns once connections can be accepted."""

    def wake(self, stream: str) -> None:
        """A NOTIFY has arrived."""

    def positions(self) -> Mapping[Key, Token]:
        """The positions of every stream and writer; the linear position is under the writer ''."""

    async def stop(self) -> None:
        """Stop gracefully."""


class FollowerService(Protocol):
    """A follower.

    :ivar client_factory: makes the protocol of each connection to the master; None over Redis
    :ivar writer: None for a worker that does not write
    """

    client_factory: ClientFactory | None
    writer: WriterService | None

    async def start(self) -> None:
        """Read recorded positions; it is connected afterwards."""

    def positions(self) -> Mapping[Key, Token]:
        """Its positions."""

    async def wait_for(
        self, stream: str, writer: str | None, token: Token, timeout_s: float
    ) -> None:
        """Wait until it has reached a position.

        :raises SynreplError: it has not, or not in time
        """


class MembershipService(Protocol):
    """The operations that change the writers of a stream."""

    async def add(self, stream: Stream, writer: str) -> bool:
        """Allow a writer; False if it was allowed already."""

    async def drain(self, stream: Stream, writer: str, timeout_s: float) -> None:
        """Drain a writer; returns once it holds no reservation.

        :raises SynreplError: it still does after ``timeout_s`` seconds
        """

    async def remove(self, stream: Stream, writer: str) -> None:
        """Remove a writer.

        :raises SynreplError: it may still write
        """


class ServiceFactory(Protocol):
    """Makes the services of processes; those that announce positions do so through ``wrap_listener``."""

    def master(self, environment: ProcessEnvironment, wrap_listener: WrapListener) -> MasterService:
        """A master, whose announcements go through ``wrap_listener``."""

    def writer(
        self, environment: ProcessEnvironment, name: str, wrap_listener: WrapListener
    ) -> WriterService:
        """A process that only writes, to all streams."""

    def follower(
        self,
        environment: ProcessEnvironment,
        name: str,
        kind: FollowerKind,
        handlers: Sequence[tuple[HandlerKind, HandlerCallbacks]],
        wrap_listener: WrapListener,
    ) -> FollowerService:
        """A follower of all streams.

        :param handlers: those of this process
        """

    def membership(self, process: Process, database: Database) -> MembershipService:
        """An operator at the database."""
