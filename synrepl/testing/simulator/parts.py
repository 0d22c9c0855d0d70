"""What a simulated process is given, and what it must be able to do.

The simulator knows the product's services by these words only. A *cast* plays
the parts: :mod:`synrepl.daemon.simulation` wires the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from synrepl.core.tokens import Token
from synrepl.storage.database import Database
from synrepl.storage.store import FactStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from synrepl.testing.simulator.clock import Life
from synrepl.testing.simulator.network import Dialler, Factory
from synrepl.testing.simulator.position_checker import Movements
from synrepl.testing.simulator.transcript import ProcessLog

Key = tuple[str, str]

#: Bytes of a line at most, the least that can be set; and what may be queued for a slow reader.
LINE_LIMIT = 256
QUEUED_LINES = 25


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process runs: all it has in the world.

    :ivar life: its scheduler
    :ivar store: the database, as seen from here
    :ivar database: for a follower's record and transactional handlers
    """

    life: Life
    store: FactStore
    database: Database
    log: ProcessLog
    catalogue: Catalogue


class Receiver(Protocol):
    """What a follower's handler does; it may take long and it may fail."""

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


@dataclass(frozen=True, slots=True)
class FollowerKind:
    """What sort of follower it is.

    :ivar legacy: it speaks the legacy dialect and gets the linear view
    :ivar named: its positions go on record
    :ivar exactly_once: its handler is transactional
    :ivar earliest: it wants everything from the beginning
    :ivar slow_s: seconds its handler takes at most
    :ivar fails: how often its handler fails, 0 to 1
    """

    legacy: bool
    named: bool
    exactly_once: bool
    earliest: bool
    slow_s: float
    fails: float


class Held(Protocol):
    """Reserved tokens."""

    tokens: Sequence[Token]

    async def write(self, facts: Sequence[Sequence[Row]]) -> None:
        """Write facts at the first of them."""

    async def __aenter__(self) -> Held: ...

    async def __aexit__(self, *error: Any) -> object: ...


class WriterPart(Protocol):
    """A process's writer."""

    async def start(self) -> None:
        """Take the name."""

    async def append(
        self, stream: Stream, facts: Sequence[Sequence[Row]], key: str | None
    ) -> Sequence[Token]:
        """Append facts; their tokens once they are committed."""

    async def reserve(self, stream: Stream, count: int) -> Held:
        """Take tokens before writing."""

    async def stop(self) -> None:
        """Give the name back."""


class MasterPart(Protocol):
    """A master, with a writer of its own."""

    writer: WriterPart
    #: Makes the protocol of each connection.
    listener: Factory

    async def start(self) -> None:
        """Returns once connections can be taken."""

    def wake(self, stream: str) -> None:
        """A NOTIFY has arrived."""

    def positions(self) -> Mapping[Key, Token]:
        """Where every writer of every stream stands; the linear view under the writer ''."""

    async def stop(self) -> None:
        """End in good order."""


class FollowerPart(Protocol):
    """A follower."""

    #: Makes the protocol of each connection that it asks for.
    dialler: Dialler

    async def start(self) -> None:
        """Read what is on record; connect afterwards."""

    def positions(self) -> Mapping[Key, Token]:
        """Where it stands."""


class Cast(Protocol):
    """Who plays the parts."""

    def sizes(self, small: bool) -> AbstractContextManager[None]:
        """Make pages and buffers small, so that few facts reach their ends."""

    def master(self, place: Place, watch: Callable[[Movements], Movements]) -> MasterPart:
        """A master, whose announcements go through ``watch``."""

    def writer(self, place: Place, name: str) -> WriterPart:
        """A process that only writes, to all streams."""

    def follower(
        self, place: Place, name: str, kind: FollowerKind, receiver: Receiver
    ) -> FollowerPart:
        """A follower of all streams."""
