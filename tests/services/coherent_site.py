"""A master whose caches are kept coherent, around a store in memory, and its clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.caches import make_caches
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.master import MasterFactory
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.announcing.fan_out import FanOut
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.coherence.invalidation_relay import InvalidationRelay
from synrepl.services.coherence.invalidations import Changes, Invalidations
from synrepl.services.coherence.listeners import CoherentCommitListener, CoherentPositionListener
from synrepl.services.serving.master import Master
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.store import DatabaseAway
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.definition import UNTAGGED
from synrepl.streams.effects import Invalidates, columns_key
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.wire.commands import Command
from tests.services.test_serve import Client
from tests.services.world import Noting, done, manual_clock
from tests.storage.recorded_changes import RecordedChanges

ORDERS = declare("orders", {"customer": "text"})
OrderRow = ORDERS.kinds[UNTAGGED]
CATALOGUE = Catalogue((*SYNAPSE_STREAMS, ORDERS))


class Store(MemoryStore):
    """A store in memory that can be away, and can hold up its answers.

    :ivar table: the changes that were committed
    :ivar away: every call fails
    :ivar stop: steps at which the next operations are suspended
    """

    def __init__(self, scheduler: TwistedScheduler) -> None:
        self.table: list[Any] = []
        super().__init__(scheduler, begin_changes=lambda: RecordedChanges(self.table))
        self.away = False
        self.stop: list[str] = []
        self.stopped: list[Deferred[None]] = []

    async def step(self, what: str) -> None:
        """Fail, or wait."""
        if self.away:
            raise DatabaseAway(where="memory", reason="a test says so")
        if what in self.stop:
            self.stop.remove(what)
            stopped: Deferred[None] = Deferred()
            self.stopped.append(stopped)
            await stopped


class Site:
    """One master, named ``master``, which writes all streams.

    :ivar get_user: a cached function, whose values a test changes in ``truth``
    :ivar get_orders: another, which rows of ``orders`` make stale
    """

    def __init__(self) -> None:
        self.clock = manual_clock()
        self.scheduler = TwistedScheduler(self.clock)
        self.store = Store(self.scheduler)
        self.log = Noting()
        self.truth: dict[str, int] = {}
        self.caches = make_caches()
        self.get_user = self.caches.cached(name="get_user", by_name=True)(self._get)
        self.get_orders = self.caches.cached(name="get_orders")(self._get)
        self.caches.on_rows("orders", Invalidates("get_orders", columns_key("customer")))
        self.coherence = Coherence(self.caches, CATALOGUE, self.log)
        self.coherence.check()
        self.publisher = Publisher(self.scheduler, {s.name: RowCodec(s) for s in CATALOGUE})
        movements = FanOut((CoherentPositionListener(self.coherence, "master"), self.publisher))
        self.announcer = Announcer(self.scheduler, self.store, CATALOGUE, movements, self.log)
        settled = CoherentCommitListener(self.coherence, "master", self.announcer)
        self.writer = StreamWriter(
            self.scheduler, self.store, "master", list(CATALOGUE), settled, self.log
        )
        self.invalidations = Invalidations(self.clock, self.caches, self.coherence, self.log)
        self.changes = Changes(self.writer, self.invalidations)
        self.relay = InvalidationRelay(self.scheduler, self.writer, self.invalidations, self.log)
        self.events: list[Command] = []
        self.master = Master(
            self.scheduler,
            CATALOGUE,
            self.announcer.states,
            self.publisher,
            self.store,
            lambda name, command: self.events.append(command),
            self.log,
            self.relay.take,
        )

    def start(self) -> None:
        """As a daemon would."""
        done(self.writer.start())
        done(self.announcer.start())
        for name, state in self.announcer.states.items():
            for writer, position in state.positions.items():
                self.coherence.begin(name, writer, position)

    def stop(self) -> None:
        """Leave no timer."""
        self.store.away = False
        done(self.announcer.stop())
        self.scheduler.stop()

    def cached(self, name: str) -> list[Any]:
        """The keys that a cache holds."""
        (cache,) = self.caches.named(name)
        return list(cache.entries)

    @property
    def warnings(self) -> list[str]:
        """What was warned of."""
        return [text for level, text in self.log.lines if level == "warn"]

    def _get(self, key: str) -> tuple[str, int]:
        return (key, self.truth.get(key, 0))


class Peer(Client):
    """A client that can tell rows from the rest."""

    def rows(self) -> list[str]:
        """The rows since the last time."""
        return [line for line in self.heard() if line.startswith("RDATA")]


class SiteCase(SynchronousTestCase):
    """A site that has started, and whose caches hold something."""

    def setUp(self) -> None:
        self.site = self.world = Site()
        self.site.start()
        self.addCleanup(self.site.stop)
        self.factory = MasterFactory(self.site.scheduler, self.site.master, "example.org")
        for user in ("@a", "@b"):
            self.site.get_user(user)
        self.site.get_orders("c1")

    def client(self, *said: str) -> Peer:
        """A client that has said something, and has heard what was to be heard at once."""
        client = Peer(self, *said)  # type: ignore[arg-type]
        client.heard()
        return client

    def turn(self) -> None:
        """Let what was put off be done."""
        self.site.clock.advance(0)

    def run_changes(self, work: Callable[..., Any], *streams: Any) -> list[Any]:
        """Filled with the result, or the exception, once there is one."""
        outcome: list[Any] = []

        def keep(result: Any) -> None:
            outcome.append(result.value if isinstance(result, Failure) else result.result)

        Deferred.fromCoroutine(self.site.changes.run("a test", work, streams)).addBoth(keep)
        self.turn()
        return outcome
