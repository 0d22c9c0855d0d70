"""A master on the bus announces itself, plain SQL and dead writers, and no other writer."""

from __future__ import annotations

from unittest import TestCase

from synrepl.adapters.caches import make_caches
from synrepl.daemon.config.redis import RedisConfig
from synrepl.services.bus.proxy_announcer import CHECK_S
from synrepl.services.coherence.coherence import Coherence
from synrepl.storage.memory.lease import MemoryLease
from synrepl.storage.store import Draft
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec
from tests.services.manual_pubsub import (
    CATALOGUE,
    NOTES,
    ManualBusPort,
    ManualPubSub,
    PubSubProcess,
)
from tests.services.world import RecordingLog, done
from tests.support.masters import build_master


class AnnouncingForOthers(TestCase):
    def setUp(self) -> None:
        self.pubsub, log = ManualPubSub(), RecordingLog()
        scheduler = self.pubsub.scheduler
        self.addCleanup(scheduler.stop)
        services = build_master(
            scheduler,
            self.pubsub.store,
            Coherence(make_caches(), CATALOGUE, log),
            CATALOGUE,
            log,
            own=[NOTES],
            redis=RedisConfig(),
            connect_bus=ManualBusPort(self.pubsub).connect_bus,
        )
        assert services.bus is not None
        self.announcer = services.announcer
        self.writer = services.writer
        done(services.take_name())
        done(services.begin())
        services.bus.start()
        self.worker = PubSubProcess(self.pubsub, "worker")
        self.look()
        self.published()

    def look(self) -> None:
        """The announcer looks at the store, as it does all the time."""
        self.announcer.wake_all()
        self.pubsub.settle()

    def published(self) -> list[str]:
        self.pubsub.settle()
        published, self.pubsub.published = self.pubsub.published, []
        return [line.decode() for _, line in published]

    def rows(self, text: str) -> list[list[Row]]:
        return [[RowCodec(NOTES).decode(b'["%b"]' % text.encode())]]

    def other(self, name: str) -> MemoryLease:
        """Another process takes a name, and commits a fact that it does not announce."""
        lease = done(self.pubsub.store.open_writer(name, [NOTES]))
        done(lease.append(NOTES, [Draft(self.rows(name))], 0))
        return lease

    def test_announces_its_own_facts(self) -> None:
        done(self.writer.append(NOTES, self.rows("a")))
        self.assertIn('RDATA notes master 1 ["a"]', self.published())

    def test_does_not_announce_live_writers(self) -> None:
        self.worker.append("a")
        self.look()
        own = ["POSITION notes worker 0 0", 'RDATA notes worker 1 ["a"]']
        self.assertEqual(self.published(), own)  # once, by itself
        self.assertEqual(self.announcer.states["notes"].positions["worker"], 1)

    def test_announces_facts_that_a_dead_writer_left_unannounced(self) -> None:
        lease = self.other("mortal")
        self.look()
        self.assertEqual(self.published(), [])
        lease.kill()
        self.look()
        self.pubsub.clock.advance(CHECK_S)
        self.assertIn("POSITION notes mortal 1 1", self.published())
        facts = self.worker.handler.facts["notes", "mortal"]
        self.assertEqual([fact.token for fact in facts], [1])

    def test_announces_only_the_position_of_a_dead_writer(self) -> None:
        """They would hide what the process had committed before without announcing it."""
        lease = self.other("mortal")
        self.look()
        done(lease.append(NOTES, [Draft(self.rows("more"))], 0))
        lease.kill()
        self.look()
        self.pubsub.clock.advance(CHECK_S)
        about = [line for line in self.published() if "mortal" in line]
        self.assertEqual(about, ["POSITION notes mortal 2 2"])
        facts = self.worker.handler.facts["notes", "mortal"]
        self.assertEqual([fact.token for fact in facts], [1, 2])

    def test_dead_writers_advance_with_the_others(self) -> None:
        self.other("mortal").kill()
        self.look()
        self.pubsub.clock.advance(CHECK_S)
        self.published()
        done(self.writer.append(NOTES, self.rows("a")))
        for _ in range(3):  # settled, on record, announced
            self.look()
            self.pubsub.clock.advance(CHECK_S)
        about = [line for line in self.published() if "mortal" in line]
        self.assertEqual(about, ["POSITION notes mortal 1 2"])

    def test_announces_a_dead_writer_once(self) -> None:
        self.other("mortal").kill()
        for _ in range(5):
            self.look()
            self.pubsub.clock.advance(CHECK_S)
        about = [line for line in self.published() if "mortal" in line]
        self.assertEqual(about.count("POSITION notes mortal 1 1"), 1)
