"""A follower invalidates caches before handlers get a batch, and before its position moves."""

from __future__ import annotations

from typing import Any

import psycopg2
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.caches import make_caches
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.handlers import Batch, Handler, TransactionalHandler
from synrepl.services.position_waiters import PositionWaiters
from synrepl.storage.database import Transaction
from synrepl.storage.memory.store import MemoryStore
from synrepl.streams.definition import Fact
from synrepl.streams.effects import Invalidates, columns_key
from synrepl.wire.commands import Position, Rdata
from tests.services.coherent_master import CATALOGUE, OrderRow
from tests.services.world import FakeUpstream, NullLog, RecordingLog, manual_clock
from tests.storage.postgres import PostgresCase


class InvalidatingInAWorker(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock, self.log = manual_clock(), RecordingLog()
        scheduler = TwistedScheduler(self.clock)
        self.caches = make_caches()
        self.get_order = self.caches.cached(name="get_order")(lambda customer: [customer])
        self.caches.on_rows("orders", Invalidates("get_order", columns_key("customer")))
        self.coherence = Coherence(self.caches, CATALOGUE, self.log)
        self.seen: list[tuple[str, list[Any]]] = []
        self.failures = 0
        self.waiters = PositionWaiters(scheduler)
        see = self.see

        class Sees(Handler):
            async def on_rows(handler, batch: Batch) -> None:  # noqa: N805
                see(f"handler at {batch.after}")
                self.get_order("c1")  # as it is now
                if self.failures:
                    self.failures -= 1
                    raise RuntimeError("not now")

            async def on_reset(handler, stream: str, writer: str, position: int) -> None:  # noqa: N805
                see(f"reset to {position}")

        self.delivery = Delivery(
            scheduler,
            [Subscription(Sees())],
            self.log,
            waiters=self.waiters,
            coherence=self.coherence,
        )
        self.follower = Follower(
            scheduler, CATALOGUE, MemoryStore(scheduler), self.delivery, self.log
        )
        self.follower.connected(FakeUpstream())
        self.follower.received([Position("orders", "master", 0, 0)])
        for customer in ("c1", "c2"):
            self.get_order(customer)

    def see(self, who: str) -> None:
        (cache,) = self.caches.named("get_order")
        self.seen.append((who, [key for (key,) in cache.entries]))

    def wait(self, token: int) -> None:
        """Read the cache once the position has reached a token."""
        waiting = Deferred.fromCoroutine(self.waiters.wait([("orders", "master")], token, 60))
        waiting.addCallback(lambda position: self.see(f"waiter at {position}"))

    def receive(self, token: int, customer: str) -> None:
        row = f'["{customer}"]'.encode()
        self.follower.received([Rdata("orders", "master", token, row)])
        self.clock.advance(0)

    def test_invalidates_before_handlers_and_waiters_run(self) -> None:
        self.wait(1)
        self.receive(1, "c1")
        self.assertEqual(self.seen, [("handler at 0", ["c2"]), ("waiter at 1", ["c2", "c1"])])
        self.assertEqual(self.follower.positions, {("orders", "master"): 1})

    def test_invalidates_while_a_handler_fails(self) -> None:
        """Entries loaded meanwhile are newer than the rows."""
        self.failures = 1
        self.wait(1)
        self.receive(1, "c1")
        self.assertEqual(self.follower.positions, {("orders", "master"): 0})
        self.assertEqual(self.seen, [("handler at 0", ["c2"])])
        self.clock.pump([0.5] * 4)
        self.assertEqual(
            self.seen[1:], [("handler at 0", ["c2", "c1"]), ("waiter at 1", ["c2", "c1"])]
        )

    def test_drops_a_load_that_began_before_the_rows_came(self) -> None:
        (cache,) = self.caches.named("get_order")
        early = cache.begin(("c3",))
        self.receive(1, "c3")
        cache.loaded(("c3",), early, "old")
        self.assertNotIn(("c3",), cache.entries)

    def test_clears_caches_when_rows_are_lost(self) -> None:
        done = Deferred.fromCoroutine(self.delivery.reset("orders", "master", 9, 9))
        self.successResultOf(done)
        self.assertEqual(self.seen, [("reset to 9", [])])

    def test_clears_caches_when_a_writer_appears_later(self) -> None:
        """Its earlier facts may be newer than the entries."""
        self.follower.received([Position("orders", "other", 7, 7)])
        self.see("now")
        self.assertEqual(self.seen, [("now", [])])


class InvalidatingAfterATransactionalHandler(PostgresCase):
    async def test_invalidates_again_once_the_effects_are_committed(self) -> None:
        """A load that reads while the handler's transaction runs gets old data."""
        self.sql("CREATE TABLE ages (name text PRIMARY KEY, age int)")
        self.sql("INSERT INTO ages VALUES ('c1', 1)")
        process, caches = self.process("worker1"), make_caches()

        @caches.cached()
        async def get_age(name: str) -> int:
            return await process.database.run("get_age", lambda txn: age(txn, name), read_only=True)

        def age(txn: Transaction, name: str) -> int:
            found = txn.execute("SELECT age FROM ages WHERE name = %s", (name,)).fetchone()
            return int(found[0])

        class Counts(TransactionalHandler):
            def apply(self, txn: Transaction, batch: Batch) -> None:
                txn.execute("UPDATE ages SET age = age + 1 WHERE name = 'c1'")

        caches.on_rows("orders", Invalidates("get_age", columns_key("customer")))
        coherence = Coherence(caches, CATALOGUE, NullLog())
        coherence.begin("orders", "master", 0)
        delivery = Delivery(
            process.scheduler,
            [Subscription(Counts())],
            NullLog(),
            "worker1",
            process.database,
            coherence=coherence,
        )
        await delivery.start()
        self.assertEqual(await get_age("c1"), 1)
        blocker = psycopg2.connect(self.dsn)
        self.addCleanup(blocker.close)
        with blocker.cursor() as cursor:
            cursor.execute("SELECT 1 FROM ages FOR UPDATE")
        batch = Batch("orders", "master", 0, 1, [Fact(1, "master", (OrderRow("c1"),))])
        running = Deferred.fromCoroutine(delivery.deliver(batch))
        (cache,) = caches.named("get_age")
        self.assertEqual(list(cache.entries), [])
        self.assertEqual(await get_age("c1"), 1)
        blocker.rollback()
        await running
        self.assertEqual(list(cache.entries), [])
        self.assertEqual(await get_age("c1"), 2)
