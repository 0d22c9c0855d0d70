"""How a follower handles a failover that loses commits, step by step."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from simulator.follower_database import (
    FollowerDatabase,
    FollowerRecordStore,
    FollowerTransaction,
)
from synrepl.core.tokens import Range, Token
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.following.handler_calls import BACK_OFF
from synrepl.services.handlers import Batch, Handler, TransactionalHandler
from synrepl.services.sources import CatchUpSources, StorePositions, fetchable_in_order
from synrepl.storage.database import Transaction
from synrepl.storage.incarnations import MARGIN
from synrepl.storage.memory.server import MemoryServer
from synrepl.storage.store import Draft
from synrepl.streams.definition import UNTAGGED, Fact, Generation
from synrepl.streams.rows import RowCodec
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.dialects import LEGACY, MODERN, Dialect
from tests.services.world import FakeUpstream, MasterWorld, RecordingLog, done, started

ONE = ("jobs", "one")


class RecordingHandler(Handler):
    """Records the tokens of its facts, and the losses reported to it.

    :ivar failures: number of calls that will still fail
    """

    streams = frozenset({"jobs"})

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.lost: list[Range | None] = []
        self.failures = 0

    async def on_rows(self, batch: Batch) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("not now")
        self.tokens += [fact.token for fact in batch.facts]

    async def on_reset(
        self, stream: str, writer: str, position: Token, lost: Range | None = None
    ) -> None:
        self.lost.append(lost)


class RecordingTransactionalHandler(TransactionalHandler):
    """Records the tokens of applied facts, once they are committed."""

    streams = frozenset({"jobs"})

    def __init__(self) -> None:
        self.tokens: list[Token] = []

    def apply(self, txn: Transaction, batch: Batch) -> None:
        assert isinstance(txn, FollowerTransaction)
        txn.effects.append(partial(self.tokens.extend, [fact.token for fact in batch.facts]))


class SlowDatabase(FollowerDatabase):
    """A follower database in which the test can suspend transactions.

    :param floors: floors of streams after a failover
    :ivar slow: what the next transaction of each name waits for
    """

    def __init__(self, server: MemoryServer, floors: Mapping[str, Token]) -> None:
        self.kept = FollowerRecordStore(server, self.lost_since, lambda: floors)
        self._floors = floors
        self.slow: dict[str, Deferred[None]] = {}
        super().__init__(lambda name: self.slow.pop(name, succeed(None)), lambda _: "", self.kept)

    def lost_since(self, number: int) -> list[tuple[object, ...]]:
        """All ranges, after every failover."""
        if number == self.kept.server.incarnation:
            return []
        return [(stream, "", 0, floor) for stream, floor in self._floors.items()]


class FollowingCase(SynchronousTestCase):
    """Base of tests of a follower of ``jobs`` with one handler, on a manual clock."""

    def setUp(self) -> None:
        self.world: MasterWorld = started()
        self.addCleanup(self.world.stop)
        self.addCleanup(self.world.scheduler.stop)
        self.jobs = self.world.catalogue["jobs"]
        self.handler = RecordingHandler()
        self.floors: dict[str, Token] = {}
        self.database = SlowDatabase(self.world.store.server, self.floors)
        self.lease = done(self.world.store.open_writer("one", [self.jobs]))

    def deliver(self, linear: bool = False, handler: Handler | None = None) -> Delivery:
        """A started delivery with the handler."""
        world, positions = self.world, StorePositions(self.world.store)
        sources = CatchUpSources(
            fetchable_in_order(world.catalogue, foreign=False), world.store, positions
        )
        made = Delivery(
            world.scheduler,
            [Subscription(handler or self.handler, "handler")],
            RecordingLog(),
            "worker1",
            self.database,
            sources=sources,
            linear=linear,
        )
        done(made.start())
        return made

    def append(self, count: int) -> list[Fact]:
        """Append and return that many facts."""
        job = self.jobs.kinds[UNTAGGED]
        drafts = [Draft([[job(number, None, None)]]) for number in range(count)]
        done(self.lease.append(self.jobs, drafts, 0))
        return self.world.facts("jobs")[-count:]

    def connect(self, dialect: Dialect, handler: Handler) -> None:
        """Start a process with a connection on which the test sends lines."""
        world = self.world
        self.delivery = self.deliver(not dialect.per_writer, handler)
        self.follower = Follower(
            world.scheduler, world.catalogue, world.store, self.delivery, RecordingLog(), {"jobs"}
        )
        self.follower.connected(FakeUpstream(dialect))

    def batch(self, after: Token, facts: Sequence[Fact]) -> Batch:
        """Facts as they come over the connection."""
        return Batch("jobs", "one", after, facts[-1].token, facts)

    def begin(self, coroutine: Coroutine[Any, Any, object]) -> Deferred[object]:
        """Start a coroutine that may have to wait."""
        return Deferred.fromCoroutine(coroutine)

    def on_record(self) -> Token:
        """The recorded position of the handler."""
        return self.database.kept.handler("worker1", "handler")[ONE]


class FactsOfTheOldServer(FollowingCase):
    """Facts from the connection that only the old server had."""

    def fail_over(self, kept: Token) -> None:
        """Promote a standby that has facts up to ``kept``, and no record of the handler."""
        store = self.world.store
        store.lose(self.jobs, kept)
        self.database.kept.records.clear()
        store.server.promote()
        done(store.confirm({}))
        self.floors["jobs"] = done(store.observe([self.jobs]))["jobs"].floor

    def test_a_handler_that_has_reread_its_record_does_not_apply_them(self) -> None:
        exact = RecordingTransactionalHandler()
        delivery = self.deliver(handler=exact)
        delivery.open_lane(ONE, earliest=True)
        first, second, third = self.append(3)
        done(delivery.deliver(self.batch(0, [first, second])))
        delivery.lane_moved(ONE, 2)
        self.assertEqual(exact.tokens, [1, 2])
        self.fail_over(1)
        done(delivery.cross_floor(ONE))
        self.assertEqual(exact.tokens, [1, 2, 1])
        done(delivery.deliver(self.batch(2, [third])))
        delivery.lane_moved(ONE, 3)
        self.assertEqual(exact.tokens, [1, 2, 1])

    def test_a_handler_that_has_started_since_does_not_apply_them(self) -> None:
        (fact,) = self.append(1)
        self.fail_over(0)
        exact = RecordingTransactionalHandler()
        delivery = self.deliver(handler=exact)
        delivery.open_lane(ONE, earliest=True)
        done(delivery.deliver(self.batch(0, [fact])))
        self.assertEqual(exact.tokens, [])

    def test_a_commit_on_it_that_is_answered_late_moves_no_position(self) -> None:
        answer: Deferred[None] = Deferred()

        class AnsweredLate(RecordingTransactionalHandler):
            def apply(handler, txn: Transaction, batch: Batch) -> None:  # noqa: N805
                super().apply(txn, batch)
                assert isinstance(txn, FollowerTransaction)
                txn.effects.append(lambda: self.database.slow.update({"apply": answer}))

        delivery = self.deliver(handler=AnsweredLate())
        delivery.open_lane(ONE, earliest=True)
        applying = self.begin(delivery.deliver(self.batch(0, self.append(2))))
        self.fail_over(1)
        rereading = self.begin(delivery.cross_floor(ONE))
        self.database.slow.clear()
        answer.callback(None)
        for each in (applying, rereading):
            self.successResultOf(each)
        (consumer,) = delivery.consumers
        self.assertLess(consumer.trackers[ONE].recorded or 0, 2)


class LossesOfAnEarlierProcess(FollowingCase):
    """Facts that an earlier process delivered, but did not record."""

    def setUp(self) -> None:
        super().setUp()
        facts = self.append(2)
        self.connect(MODERN, self.handler)
        self.follower.received([Position("jobs", "one", 0, 0), *self.rows(facts)])
        self.assertEqual((self.handler.tokens, self.on_record()), ([1, 2], 0))
        self.connect(MODERN, self.handler)  # after a crash
        store = self.world.store
        store.lose(self.jobs, 0)
        store.server.promote()
        done(store.confirm({}))
        self.floor = done(store.observe([self.jobs]))["jobs"].floor
        self.floors["jobs"] = self.floor

    def rows(self, facts: Sequence[Fact]) -> list[Rdata]:
        """Facts as they come over the connection."""
        encode = RowCodec(self.jobs).encoder(Generation.CURRENT)
        return [Rdata("jobs", "one", fact.token, encode(fact.rows[0])) for fact in facts]

    def test_the_next_process_notifies_handlers_of_lost_facts(self) -> None:
        self.follower.received([Position("jobs", "one", self.floor, self.floor)])
        self.assertEqual(self.handler.lost, [Range(0, self.floor - 1)])
        self.assertEqual(self.follower.positions, {("jobs", "one"): self.floor})

    def test_notifies_handlers_only_once(self) -> None:
        for _ in range(2):
            self.follower.disconnected()
            self.follower.connected(FakeUpstream(MODERN))
            self.follower.received([Position("jobs", "one", self.floor, self.floor)])
        self.assertEqual(len(self.handler.lost), 1)


class RecordingInProgress(FollowingCase):
    """Positions that are being recorded when the handler is moved back."""

    def setUp(self) -> None:
        super().setUp()
        self.delivery = self.deliver()
        self.delivery.open_lane(ONE, earliest=True)
        done(self.delivery.deliver(self.batch(0, self.append(3))))
        self.delivery.lane_moved(ONE, 3)
        self.under_way: Deferred[None] = Deferred()
        self.database.slow["record positions"] = self.under_way
        self.recording = self.begin(self.delivery.progress.record())

    def finish(self, moving_back: Deferred[object]) -> None:
        self.under_way.callback(None)
        for each in (self.recording, moving_back):
            self.assertIsNone(self.successResultOf(each))

    def test_a_writer_that_starts_again_resets_the_record(self) -> None:
        self.finish(self.begin(self.delivery.reset("jobs", "one", 3, 0)))
        self.assertEqual(self.on_record(), 0)

    def test_does_not_record_positions_that_a_failover_may_have_lost(self) -> None:
        self.finish(self.begin(self.delivery.facts_lost(ONE, Range(1, 3))))
        self.assertEqual(self.handler.lost, [Range(1, 3)])
        self.assertEqual(self.on_record(), 1)


class JoiningTheLane(FollowingCase):
    """A handler that was behind joins its lane."""

    def test_does_not_join_before_a_batch_that_the_lane_is_delivering(self) -> None:
        delivery = self.deliver()
        delivery.open_lane(ONE, earliest=True)
        first, second = self.append(2)
        self.handler.failures = 1
        done(delivery.deliver(self.batch(0, [first])))
        delivery.lane_moved(ONE, 1)
        done(delivery.deliver(self.batch(1, [second])))
        self.world.clock.advance(BACK_OFF.first_s)  # the lane has not said yet that it has moved
        delivery.lane_moved(ONE, 2)
        self.world.clock.advance(BACK_OFF.first_s)
        self.assertEqual(self.handler.tokens, [1, 2])


class FailingOverInTheLinearView(FollowingCase):
    """A connection that does not name writers."""

    def follow(self, handler: Handler) -> None:
        """Connect while the stream is empty."""
        self.connect(LEGACY, handler)
        self.follower.received([Position("jobs", None, None, 0)])

    def rows(self, facts: Sequence[Fact]) -> list[Rdata]:
        """Facts as they come over the connection."""
        encode = RowCodec(self.jobs).encoder(Generation.LEGACY)
        return [Rdata("jobs", None, fact.token, encode(fact.rows[0])) for fact in facts]

    def fail_over(self, kept: Token) -> None:
        """Promote a standby that has facts up to ``kept``."""
        store = self.world.store
        store.lose(self.jobs, kept)
        store.set_sequence(self.jobs, kept)
        store.server.promote()
        done(store.confirm({}))
        self.floors["jobs"] = done(store.observe([self.jobs]))["jobs"].floor

    def test_notifies_a_handler_that_was_ahead_of_the_new_server(self) -> None:
        facts = self.append(9)
        done(self.world.store.record_positions(self.jobs, 7, {"one": 7}))
        self.follow(self.handler)
        self.follower.received(self.rows(facts))
        self.follower.received([Position("jobs", None, None, 12)])  # 10 to 12 were given back
        self.assertEqual(self.follower.positions, {("jobs", ""): 12})
        self.fail_over(7)
        self.follower.received([Position("jobs", None, None, 7 + MARGIN)])
        self.assertEqual(self.handler.lost, [Range(7, 12)])
        self.assertEqual(self.follower.positions, {("jobs", ""): 7 + MARGIN})

    def test_notifies_a_handler_that_gets_old_and_new_facts_in_one_turn(self) -> None:
        facts = self.append(9)
        done(self.world.store.record_positions(self.jobs, 7, {"one": 7}))
        self.follow(self.handler)
        self.fail_over(7)
        self.lease = done(self.world.store.open_writer("one", [self.jobs]))
        (new,) = self.append(1)
        self.follower.received(self.rows([*facts, new]))
        self.follower.received([Position("jobs", None, None, new.token)])
        self.assertEqual(self.handler.lost, [Range(7, 9)])
        self.assertEqual(self.handler.tokens, [*range(1, 10), new.token])

    def test_a_handler_at_the_beginning_gets_only_facts_above_the_floor(self) -> None:
        self.follow(RecordingTransactionalHandler())
        done(self.delivery.progress.record())
        self.fail_over(0)
        self.follower.received([Position("jobs", None, None, MARGIN)])
        self.world.store.away = True  # nothing can be read again
        done(self.delivery.progress.record())
        self.assertEqual(self.follower.positions, {("jobs", ""): MARGIN})
