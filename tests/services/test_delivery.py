"""Delivery to transactional handlers, in a real database."""

from __future__ import annotations

from typing import ClassVar

from twisted.internet import reactor
from twisted.logger import Logger
from twisted.trial.unittest import TestCase

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import Token
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.delivery import Delivery
from synrepl.services.handlers import Batch, TransactionalHandler
from synrepl.storage.database import Transaction
from synrepl.streams.declared import declare
from synrepl.streams.definition import UNTAGGED, Fact
from tests.storage.postgres import MIGRATED

ORDERS = declare("orders", {"order_id": "text"})
Order = ORDERS.kinds[UNTAGGED]


def batch(after: int, tokens: list[int], ordered: bool = True) -> Batch:
    facts = [Fact(token, "master", (Order(f"o{token}"),)) for token in tokens]
    return Batch("orders", "master", after, tokens[-1], facts, ordered)


class Ledger(TransactionalHandler):
    """Inserts every fact that it gets; fails afterwards while the test wants it to."""

    fail = 0
    seen: ClassVar[str] = "CREATE TABLE IF NOT EXISTS seen (token bigint)"

    def apply(self, txn: Transaction, batch: Batch) -> None:
        txn.execute(self.seen)
        txn.insert_many("INSERT INTO seen VALUES %s", [(fact.token,) for fact in batch.facts])
        if self.fail:
            self.fail -= 1
            raise RuntimeError("not now")


class DeliveringToATransactionalHandler(TestCase):
    async def setUp(self) -> None:
        dsn = await MIGRATED.copy(self)
        self.database = PostgresDatabase(reactor, dsn, "test")
        self.addCleanup(self.database.close)
        self.handler = Ledger()

    async def delivery(self) -> Delivery:
        made = Delivery(
            TwistedScheduler(reactor),
            [Subscription(self.handler)],
            Logger(),
            "worker1",
            self.database,
        )
        await made.start()
        return made

    async def seen(self) -> list[int]:
        return await self.database.run(
            "seen",
            lambda txn: [row[0] for row in txn.execute("SELECT token FROM seen").fetchall()],
            read_only=True,
        )

    async def position(self) -> Token | None:
        """The recorded position, from which a new process continues."""
        (consumer,) = (await self.delivery()).consumers
        return consumer.trackers["orders", "master"].recorded

    async def test_effects_and_position_commit_together(self) -> None:
        first = await self.delivery()
        await first.deliver(batch(0, [1, 2]))
        self.assertEqual(await self.position(), 2)
        self.assertEqual(await self.seen(), [1, 2])

    async def test_does_not_apply_facts_again(self) -> None:
        await (await self.delivery()).deliver(batch(0, [1, 2]))
        # A follower that crashed before it knew receives from where it thinks it was.
        await (await self.delivery()).deliver(batch(0, [1, 2, 3]))
        await (await self.delivery()).deliver(batch(0, [2, 3]))
        self.assertEqual(await self.seen(), [1, 2, 3])

    async def test_rolls_back_a_failure_and_retries(self) -> None:
        self.handler.fail = 1
        delivery = await self.delivery()
        await delivery.deliver(batch(0, [1]))
        self.assertEqual((await self.seen(), delivery.failures.total.total()), ([1], 1))

    async def test_applies_all_unordered_rows(self) -> None:
        delivery = await self.delivery()
        await delivery.deliver(batch(10, [16, 15, 14], ordered=False))
        await delivery.deliver(batch(10, [13], ordered=False))
        self.assertEqual(await self.seen(), [16, 15, 14, 13])

    async def test_a_reset_deletes_the_position(self) -> None:
        delivery = await self.delivery()
        await delivery.deliver(batch(0, [5]))
        await delivery.reset("orders", "master", 0, 0)
        await delivery.deliver(batch(0, [1]))
        self.assertEqual(await self.seen(), [5, 1])
        self.assertEqual(await self.position(), 1)
