"""Fixtures: a master with coherent caches on a store in memory, and its clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.caches import make_caches
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.master import MasterFactory
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.following.consumer import Subscription
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.store import DatabaseAway
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.definition import UNTAGGED
from synrepl.streams.effects import Invalidates, columns_key
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.wire.commands import Command
from tests.services.test_serve import Client
from tests.services.world import RecordingLog, done, manual_clock
from tests.storage.recorded_changes import RecordedChanges
from tests.support.masters import CommandRecorder, build_master

ORDERS = declare("orders", {"customer": "text"})
OrderRow = ORDERS.kinds[UNTAGGED]
CATALOGUE = Catalogue((*SYNAPSE_STREAMS, ORDERS))


class SuspendableStore(MemoryStore):
    """A store in memory that can be unavailable, and can suspend operations.

    :ivar table: the committed changes
    :ivar away: True to fail every call
    :ivar stop: steps at which the next operations are suspended
    :ivar stopped: resumes the suspended operations
    """

    def __init__(self, scheduler: TwistedScheduler) -> None:
        self.table: list[Any] = []
        super().__init__(scheduler, begin_changes=lambda: RecordedChanges(self.table))
        self.away = False
        self.stop: list[str] = []
        self.stopped: list[Deferred[None]] = []

    async def step(self, what: str) -> None:
        """Fail or wait, if the test wants so."""
        if self.away:
            raise DatabaseAway(where="memory", reason="a test says so")
        if what in self.stop:
            self.stop.remove(what)
            stopped: Deferred[None] = Deferred()
            self.stopped.append(stopped)
            await stopped


class CoherentMaster:
    """A master named ``master``, which writes all streams.

    :ivar get_user: a cached function, whose values tests change in ``truth``
    :ivar get_orders: a cached function that rows of ``orders`` invalidate
    """

    def __init__(self) -> None:
        self.clock = manual_clock()
        self.scheduler = TwistedScheduler(self.clock)
        self.store = SuspendableStore(self.scheduler)
        self.log = RecordingLog()
        self.truth: dict[str, int] = {}
        self.caches = make_caches()
        self.get_user = self.caches.cached(name="get_user", by_name=True)(self._get)
        self.get_orders = self.caches.cached(name="get_orders")(self._get)
        self.caches.on_rows("orders", Invalidates("get_orders", columns_key("customer")))
        self.coherence = Coherence(self.caches, CATALOGUE, self.log)
        self.coherence.check()
        self.recorder = CommandRecorder()
        self.services = build_master(
            self.scheduler,
            self.store,
            self.coherence,
            CATALOGUE,
            self.log,
            handlers=[Subscription(self.recorder, name="recorder")],
        )
        assert self.services.changes is not None
        assert self.services.relay is not None
        self.changes = self.services.changes
        self.relay = self.services.relay
        self.publisher = self.services.publisher
        self.announcer = self.services.announcer
        self.writer = self.services.writer
        self.master = self.services.master

    @property
    def events(self) -> list[Command]:
        """The commands that handlers were given."""
        return [command for _, command in self.recorder.commands]

    def start(self) -> None:
        """Start it as a daemon does."""
        done(self.writer.start())
        done(self.announcer.start())
        for name, state in self.announcer.states.items():
            for writer, position in state.positions.items():
                self.coherence.begin(name, writer, position)

    def stop(self) -> None:
        """Stop it, leaving no timer."""
        self.store.away = False
        done(self.announcer.stop())
        self.scheduler.stop()

    def cached(self, name: str) -> list[Any]:
        """The keys that a cache holds."""
        (cache,) = self.caches.named(name)
        return list(cache.entries)

    @property
    def warnings(self) -> list[str]:
        """The logged warnings."""
        return [text for level, text in self.log.lines if level == "warn"]

    def _get(self, key: str) -> tuple[str, int]:
        return (key, self.truth.get(key, 0))


class RowsClient(Client):
    """A client that can select the rows it receives."""

    def rows(self) -> list[str]:
        """The rows received since the last call."""
        return [line for line in self.received() if line.startswith("RDATA")]


class CoherentMasterCase(SynchronousTestCase):
    """Base of tests with a started master whose caches have entries."""

    def setUp(self) -> None:
        self.site = self.world = CoherentMaster()
        self.site.start()
        self.addCleanup(self.site.stop)
        self.factory = MasterFactory(self.site.scheduler, self.site.master, "example.org")
        for user in ("@a", "@b"):
            self.site.get_user(user)
        self.site.get_orders("c1")

    def client(self, *said: str) -> RowsClient:
        """A client that has sent lines, and has read the immediate answer."""
        client = RowsClient(self, *said)  # type: ignore[arg-type]
        client.received()
        return client

    def turn(self) -> None:
        """Run what is due in the next turn."""
        self.site.clock.advance(0)

    def run_changes(self, work: Callable[..., Any], *streams: Any) -> list[Any]:
        """Start changes; the list gets the result or the exception."""
        outcome: list[Any] = []

        def keep(result: Any) -> None:
            outcome.append(result.value if isinstance(result, Failure) else result.result)

        Deferred.fromCoroutine(self.site.changes.run("a test", work, streams)).addBoth(keep)
        self.turn()
        return outcome
