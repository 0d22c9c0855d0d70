"""Fixtures: the store and the follower processes of the contract; a transport connects them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import MAX_TOKEN, Range, Token
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.follower import Upstream
from synrepl.services.handlers import Batch, Handler
from synrepl.services.sizes import Sizes
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.store import Page
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from synrepl.wire.commands import Command, Rdata
from tests.services.world import NullLog
from tests.support.workers import build_worker

reactor: Any = _reactor

SERVER_NAME = "example.org"

NOTES = declare("notes", {"text": "text"})

#: An in-memory stream, lost with the process that writes it.
MOODS = replace(declare("moods", {"text": "text"}), in_memory=True)

CATALOGUE = Catalogue((NOTES, MOODS))

#: Seconds within which followers must have reached a position.
PATIENCE_S = 60.0


class ContractStore:
    """Holds the facts, and is the source of followers.

    :ivar fetches: number of pages read by followers
    """

    def __init__(self) -> None:
        self.scheduler = TwistedScheduler(reactor)
        self.log = NullLog()
        self.fetches = 0
        self.forget()

    def forget(self) -> None:
        """Drop all facts."""
        self.store = MemoryStore(self.scheduler)

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Read a page for a follower."""
        self.fetches += 1
        return await self.store.page(stream, span, writer, limit)

    async def facts(self, stream: Stream, writer: str) -> list[Fact]:
        """All facts of a writer."""
        page = await self.store.page(stream, Range(0, MAX_TOKEN), writer, 10**9)
        return list(page.facts)


class RecordingHandler(Handler):
    """Records applied facts; can be blocked.

    :ivar facts: applied facts, by stream and writer
    :ivar begun: fires when a batch arrives after :meth:`hold`
    """

    def __init__(self) -> None:
        self.facts: dict[tuple[str, str], list[Fact]] = {}
        self.begun: Deferred[None] | None = None
        self._resets: list[Deferred[tuple[str, str]]] = []
        self._gates: list[Deferred[None]] | None = None

    def hold(self) -> Deferred[None]:
        """Block from now on; the result fires when the first batch arrives."""
        self._gates, self.begun = [], Deferred()
        return self.begun

    def next_reset(self) -> Deferred[tuple[str, str]]:
        """Fires with the stream and the writer of the next reset."""
        self._resets.append(Deferred())
        return self._resets[-1]

    def release(self) -> None:
        """Unblock."""
        gates, self._gates = self._gates or [], None
        for gate in gates:
            gate.callback(None)

    async def on_rows(self, batch: Batch) -> None:
        """Record facts, once unblocked."""
        if self._gates is not None:
            gate: Deferred[None] = Deferred()
            self._gates.append(gate)
            if self.begun is not None and not self.begun.called:
                self.begun.callback(None)
            await gate
        self.facts.setdefault((batch.stream, batch.writer), []).extend(batch.facts)

    async def on_reset(self, stream: str, writer: str, position: Token) -> None:
        """Drop the facts of the writer."""
        self.facts.pop((stream, writer), None)
        fired, self._resets = self._resets, []
        for each in fired:
            each.callback((stream, writer))


class FollowerProcess:
    """A follower process, as a transport sees it; can lose and repeat lines.

    :ivar duplicates_lines: pass on every line twice
    :ivar most_waiting: maximum number of rows that waited for the handler
    """

    def __init__(self, site: ContractStore, name: str, earliest: bool, sizes: Sizes) -> None:
        self.name = name
        self.applied = RecordingHandler()
        self.duplicates_lines = False
        self.most_waiting = 0
        self._scheduler = site.scheduler
        worker = build_worker(
            site.scheduler,
            CATALOGUE,
            site,
            [Subscription(self.applied, name="recorder")],
            site.log,
            name=name,
            earliest=earliest,
            sizes=sizes,
        )
        self._waiters = worker.waiters
        self.follower = worker.follower
        self._link = worker.commands.link
        self._to_lose = 0
        self._broken: tuple[int, Callable[[], object]] | None = None
        self._ups: list[Deferred[None]] = []
        self._downs: list[Deferred[None]] = []

    def lose(self, rows: int) -> None:
        """Drop the next rows, unnoticed."""
        self._to_lose = rows

    def break_after(self, rows: int, cut: Callable[[], object]) -> None:
        """Break the connection after a number of rows; later ones are lost with it."""
        self._broken = (rows, cut)

    def position(self, stream: Stream, writer: str) -> Token:
        """The position of the follower."""
        return self.follower.positions.get((stream.name, writer), 0)

    async def reaches(self, stream: Stream, writer: str, token: Token) -> None:
        """Wait until the follower has reached a token."""
        if self.position(stream, writer) < token:
            key = (stream.name, writer)
            reached = await self._waiters.wait([key], token, PATIENCE_S)
            assert reached is not None, f"{self.name} is at {self.follower.positions}"

    def up(self) -> Deferred[None]:
        """Fires at the next connection."""
        self._ups.append(Deferred())
        return self._ups[-1]

    def down(self) -> Deferred[None]:
        """Fires when the connection is lost."""
        self._downs.append(Deferred())
        return self._downs[-1]

    # -- callbacks of the transport ----------------------------------------------------

    def connected(self, upstream: Upstream) -> None:
        """Forward to the worker."""
        self._link.connected(upstream)
        _fire(self._ups)

    def received(self, commands: Sequence[Command]) -> None:
        """Forward lines that are not lost, once or twice."""
        arriving = []
        for command in commands:
            if self._to_lose and isinstance(command, Rdata):
                self._to_lose -= 1
            elif not self._is_lost(command):
                arriving += [command] * (1 + self.duplicates_lines)
        self._link.received(arriving)
        self.most_waiting = max(self.most_waiting, self.follower.waiting_rows)

    def _is_lost(self, command: Command) -> bool:
        if self._broken is None:
            return False
        rows, cut = self._broken
        if isinstance(command, Rdata):
            self._broken = (rows - 1, cut)
            if rows == 1:
                reactor.callLater(0, cut)
        return rows <= 0

    def disconnected(self) -> None:
        """Forward to the worker."""
        self._broken = None
        self._link.disconnected()
        _fire(self._downs)


class Transport(ABC):
    """Connects writers with followers.

    :ivar longest: maximum size of a row in bytes; larger ones are announced, but not sent
    """

    longest: int

    def __init__(self, site: ContractStore) -> None:
        self.site = site

    @abstractmethod
    async def begin(self) -> None:
        """Start the writers."""

    @abstractmethod
    async def end(self) -> None:
        """Stop the writers."""

    @abstractmethod
    async def append(self, name: str, stream: Stream, facts: Sequence[Sequence[Row]]) -> Token:
        """Append facts as a new or existing writer, and return the last token."""

    @abstractmethod
    async def waste(self, name: str, stream: Stream, count: int) -> Token:
        """Reserve tokens as a writer without writing, and return the last one."""

    @abstractmethod
    def join(self, following: FollowerProcess) -> None:
        """Connect a follower, which reconnects by itself."""

    @abstractmethod
    def cut(self, following: FollowerProcess) -> None:
        """Break its connection, losing what is in transit."""

    @abstractmethod
    async def leave(self, following: FollowerProcess) -> None:
        """Disconnect it for good."""


def _fire(waiting: list[Deferred[None]]) -> None:
    fired, waiting[:] = waiting[:], []
    for each in fired:
        each.callback(None)
