"""What a simulated process is given, and what it must be able to do.

The simulator knows the product's services by these words only. A *cast* plays
the parts: :mod:`simulator.product` wires the real ones.
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

#: Bytes of a line at most, the least that can be set; and what may be queued for a slow reader.
LINE_LIMIT = 256
QUEUED_LINES = 25


@dataclass(frozen=True, slots=True)
class RetentionPeriods:
    """How long facts of ephemeral streams stay.

    :ivar every_s: seconds between two rounds of trimming
    :ivar keep_s: nothing younger goes
    :ivar max_s: what is older goes, whoever still wants it
    :ivar lease_s: for how long a named follower is waited for
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
        """Connect, and again whenever they are lost."""

    async def stop(self) -> None:
        """Close them."""


@dataclass(frozen=True, slots=True)
class BusAccess:
    """Redis, as a process finds it.

    :ivar join: given the channels to hear, and who hears and speaks
    :ivar per_stream: rows and positions go to a channel per stream
    """

    join: Callable[[Collection[str], MemoryPubSubOwner], BusConnection]
    per_stream: bool


@dataclass(frozen=True, slots=True)
class ProcessEnvironment:
    """Where a process runs: all it has in the world.

    :ivar process: its scheduler
    :ivar store: the database, as seen from here
    :ivar database: for a follower's record and transactional handlers
    :ivar application: whose caches are to be kept coherent; None in a run without caches
    :ivar bus: None for a process that is not on Redis
    :ivar small: pages and buffers are small, so that few facts reach their ends
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


#: Puts a checker in front of whoever is told of movements.
WrapListener = Callable[[AnnouncementListener], AnnouncementListener]


class HandlerCallbacks(Protocol):
    """What one of a follower's handlers does; it may take long and it may fail."""

    async def handle(
        self, stream: str, writer: str, after: Token, upto: Token, facts: Sequence[Fact]
    ) -> None:
        """Take a batch outside of any transaction."""

    def apply(
        self,
        txn: object,
        stream: str,
        writer: str,
        after: Token,
        upto: Token,
        facts: Sequence[Fact],
    ) -> None:
        """Take a batch in a transaction of :class:`~.follower_database.FollowerDatabase`."""

    def reset(self, stream: str, writer: str, position: Token, lost: Range | None) -> None:
        """Facts up to ``position`` are lost for good; those in ``lost``, by a failover, perhaps."""


@dataclass(frozen=True, slots=True)
class HandlerKind:
    """What sort of handler it is.

    :ivar exactly_once: it is transactional
    :ivar other_view: it gets the view that its connection does not give
    :ivar late: it joins its follower in that one's second life, and begins at the beginning
    """

    name: str
    exactly_once: bool
    other_view: bool
    late: bool


@dataclass(frozen=True, slots=True)
class FollowerKind:
    """What sort of follower it is.

    :ivar legacy: it speaks the legacy dialect and gets the linear view
    :ivar named: its positions go on record
    :ivar handlers: transactional ones only when it is named
    :ivar earliest: it wants everything from the beginning
    :ivar slow_s: seconds its handlers take at most
    :ivar fails: how often its handlers fail, 0 to 1
    :ivar bus: it follows over Redis, and not over TCP
    :ivar writes: it is a writer, too
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
        """Write facts at the first of them."""

    async def __aenter__(self) -> ReservedTokens: ...

    async def __aexit__(self, *error: Any) -> object: ...


class InvalidationOutbox(Protocol):
    """What goes out with a change when it commits."""

    def invalidate(self, cache: str, key: Sequence[Any]) -> None:
        """Entries of a cache are stale then."""

    def invalidate_all(self, cache: str) -> None:
        """The whole cache is stale then."""

    def append(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Append a fact."""


class WriterService(Protocol):
    """A process's writer."""

    async def start(self) -> None:
        """Take the name."""

    async def append(
        self, stream: Stream, facts: Sequence[Sequence[Row]], key: str | None
    ) -> AppendResult:
        """Append facts; their tokens, and whose they are, once they are committed."""

    async def change(
        self,
        name: str,
        work: Callable[[Transaction, InvalidationOutbox], T],
        streams: Sequence[Stream],
    ) -> T:
        """Run a transaction that says what it makes stale."""

    async def reserve(self, stream: Stream, count: int) -> ReservedTokens:
        """Take tokens before writing."""

    def positions(self) -> Mapping[Key, Token]:
        """Where it stands itself."""

    async def stop(self) -> None:
        """Give the name back."""


class MasterService(Protocol):
    """A master, with a writer of its own."""

    writer: WriterService
    #: Makes the protocol of each connection.
    listener: ServerFactory

    async def start(self) -> None:
        """Returns once connections can be taken."""

    def wake(self, stream: str) -> None:
        """A NOTIFY has arrived."""

    def positions(self) -> Mapping[Key, Token]:
        """Where every writer of every stream stands; the linear view under the writer ''."""

    async def stop(self) -> None:
        """End in good order."""


class FollowerService(Protocol):
    """A follower.

    :ivar client_factory: makes the protocol of each connection that it asks for; None over Redis
    :ivar writer: for a worker that writes
    """

    client_factory: ClientFactory | None
    writer: WriterService | None

    async def start(self) -> None:
        """Read what is on record; connect afterwards."""

    def positions(self) -> Mapping[Key, Token]:
        """Where it stands."""

    async def wait_for(
        self, stream: str, writer: str | None, token: Token, timeout_s: float
    ) -> None:
        """Wait until it stands there.

        :raises SynreplError: it does not, or not in time
        """


class MembershipService(Protocol):
    """An operator's way to change who writes a stream."""

    async def add(self, stream: Stream, writer: str) -> bool:
        """Let it write; False when it could already."""

    async def drain(self, stream: Stream, writer: str, timeout_s: float) -> None:
        """Let it take nothing more; returns once it holds nothing.

        :raises SynreplError: it does, after ``timeout_s`` seconds
        """

    async def remove(self, stream: Stream, writer: str) -> None:
        """Let it be no writer any more.

        :raises SynreplError: it may still write
        """


class ServiceFactory(Protocol):
    """Who plays the parts; processes with a place on the bus announce through ``wrap_listener``."""

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

        :param handlers: those that it has in this life
        """

    def membership(self, process: Process, database: Database) -> MembershipService:
        """An operator at the database."""
