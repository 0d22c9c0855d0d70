"""Ephemeral streams are trimmed, leases hold facts, and followers are notified of lost facts."""

from __future__ import annotations

from typing import Any
from unittest import TestCase

from synrepl.core.tokens import Range, Token
from synrepl.services import trimmer
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.following.consumer import PositionTracker, Subscription
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.following.follower_lease import HEARTBEAT_S, FollowerLease
from synrepl.services.handlers import Batch, Handler
from synrepl.services.serving.stream_updates import page_skipping_trimmed
from synrepl.services.sizes import DEFAULT_SIZES
from synrepl.storage.store import DatabaseAway, Draft, Page, Trimmed
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.caches import CachesRow
from synrepl.wire.commands import Command, Position, Replicate
from synrepl.wire.dialects import LEGACY
from tests.services.world import FakeUpstream, RecordingLog, done, started

MINUTE, DAY = 60.0, 86_400.0


class TrimmingCase(TestCase):
    """Base of tests with a master and facts of ``caches``."""

    def setUp(self) -> None:
        self.world = started()
        self.addCleanup(self.world.stop)
        self.caches = self.world.catalogue["caches"]

    def append(self, count: int, stream: str = "caches") -> None:
        row = '["f",["k"],1]' if stream == "caches" else "[1]"
        done(self.world.intake.append(stream, f"[{','.join([row] * count)}]".encode()))

    def run_trimmer(self) -> None:
        self.world.scheduler.spawn("trim", self.world.trimmer.run())
        self.addCleanup(self.world.scheduler.stop)

    def wait(self, seconds: float) -> None:
        """Let time pass, in steps."""
        step = min(seconds, MINUTE / 2)
        self.world.clock.pump([step] * round(seconds / step))

    def trimmed(self, stream: str = "caches") -> Token:
        seen = done(self.world.store.observe([self.world.catalogue[stream]]))
        return seen[stream].trimmed

    def acknowledge(self, follower: str, token: Token) -> None:
        done(self.world.store.record_follower(follower, {("caches", "master"): token}))


class TrimmingInRounds(TrimmingCase):
    """The trimmer runs in rounds."""

    def test_trims_old_facts_that_no_follower_needs(self) -> None:
        self.run_trimmer()
        self.append(3)
        self.append(3, "jobs")
        self.wait(9 * MINUTE)
        self.assertEqual(self.trimmed(), 0)
        self.append(2)
        self.wait(4 * MINUTE)
        self.assertEqual(self.trimmed(), 3)
        self.wait(10 * MINUTE)
        self.assertEqual(self.trimmed(), 5)
        self.assertEqual(self.trimmed("jobs"), 0)  # is not ephemeral
        self.assertEqual(self.world.trimmer.counts["caches"], trimmer.TrimCounts(5, None))

    def test_a_follower_holds_facts_until_it_acknowledges_or_its_lease_ends(self) -> None:
        self.run_trimmer()
        done(self.world.store.renew_lease("w1", ["caches"], 3_600.0))
        self.append(5)
        self.wait(15 * MINUTE)
        self.assertEqual(self.world.trimmer.counts["caches"], trimmer.TrimCounts(0, "w1"))
        self.acknowledge("w1", 2)
        self.wait(2 * MINUTE)
        self.assertEqual(self.world.trimmer.counts["caches"], trimmer.TrimCounts(2, "w1"))
        status = self.world.status()["streams"]["caches"]["trimmed"]
        self.assertEqual(status, {"upto": 2, "rows": 2, "held_by": "w1"})
        self.wait(3_600.0)
        self.assertEqual(self.world.trimmer.counts["caches"], trimmer.TrimCounts(5, None))

    def test_trims_facts_that_are_too_old_even_if_followers_need_them(self) -> None:
        self.run_trimmer()
        done(self.world.store.renew_lease("w1", None, 10 * DAY))
        self.append(3)
        self.wait(DAY / 2)
        self.append(3)
        self.assertEqual(self.trimmed(), 0)
        self.wait(DAY / 2 + 20 * MINUTE)
        self.assertEqual(self.trimmed(), 3)
        self.assertEqual(self.world.trimmer.counts["caches"].held_by, "w1")

    def test_trims_many_rows_in_batches(self) -> None:
        batches: list[tuple[int, float]] = []
        real = self.world.store.trim

        async def noting(stream: Stream, cap: Token, forced: Token, limit: int) -> Any:
            found = await real(stream, cap, forced, limit)
            if found.rows:
                batches.append((found.rows, self.world.clock.seconds()))
            return found

        self.world.store.trim = noting  # type: ignore[method-assign]
        self.append(2 * DEFAULT_SIZES.trim_rows + 5)
        self.run_trimmer()
        self.wait(13 * MINUTE)
        self.assertEqual(
            [rows for rows, _ in batches], [DEFAULT_SIZES.trim_rows, DEFAULT_SIZES.trim_rows, 5]
        )
        self.assertEqual(len({at for _, at in batches}), 1)  # in one round

    def test_continues_after_the_database_was_unavailable(self) -> None:
        self.run_trimmer()
        self.append(3)
        self.wait(5 * MINUTE)
        self.world.store.away = True
        self.wait(3 * MINUTE)
        self.assertIn("cannot trim caches", self.world.log.lines[-1][1])
        self.world.store.away = False
        self.wait(5 * MINUTE)
        self.assertEqual(self.trimmed(), 3)

    def test_trims_nothing_above_the_linear_position_known_here(self) -> None:
        linear: list[Token] = [0]
        own = trimmer.Trimmer(
            self.world.scheduler, self.world.store, [self.caches], lambda stream: linear[0],
            RecordingLog(), every_s=60.0, keep_s=0.0, max_s=DAY,
        )  # fmt: skip
        self.append(3)
        self.world.clock.advance(1)
        self.world.scheduler.spawn("trim", own.run())
        self.addCleanup(self.world.scheduler.stop)
        self.wait(2 * MINUTE)
        self.assertEqual(self.trimmed(), 0)
        linear[0] = 2
        self.wait(2 * MINUTE)
        self.assertEqual(self.trimmed(), 2)


class KeepingALease(TrimmingCase):
    """A worker keeps its lease while it runs, and for some time after."""

    def lease(self) -> FollowerLease:
        world = self.world
        return FollowerLease(world.scheduler, world.store, "w1", ["caches"], 3_600.0, world.log)

    def held(self) -> bool:
        """Whether facts are held for it."""
        return done(self.world.store.trim(self.caches, 1, 0, 10)).held_by == "w1"

    def setUp(self) -> None:
        super().setUp()
        self.append(1)
        self.world.clock.advance(1)

    def test_renews_the_lease_and_does_not_release_it(self) -> None:
        done(self.lease().start())
        for _ in range(10):
            self.assertTrue(self.held())
            self.wait(30 * MINUTE)
        self.world.scheduler.stop()  # as when the worker ends
        self.wait(40 * MINUTE)
        self.assertTrue(self.held())
        self.wait(25 * MINUTE)
        self.assertFalse(self.held())

    def test_retries_a_failed_renewal_soon(self) -> None:
        self.addCleanup(self.world.scheduler.stop)
        done(self.lease().start())
        self.world.store.away = True
        self.wait(55 * MINUTE)
        logged = "\n".join(text for _, text in self.world.log.lines)
        self.assertIn("cannot renew the lease of follower w1", logged)
        self.world.store.away = False
        self.wait(HEARTBEAT_S)
        self.world.store.away = True
        self.wait(10 * MINUTE)
        self.world.store.away = False
        self.assertTrue(self.held())

    def test_acquires_the_lease_before_it_subscribes(self) -> None:
        self.addCleanup(self.world.scheduler.stop)
        self.world.store.away = True
        with self.assertRaises(DatabaseAway):
            done(self.lease().start())


class RecordingHandler(Handler):
    """Records its facts and resets."""

    streams = frozenset({"caches"})

    def __init__(self) -> None:
        self.resets: list[tuple[str, Token]] = []
        self.tokens: list[Token] = []

    async def on_rows(self, batch: Batch) -> None:
        self.tokens += [fact.token for fact in batch.facts]

    async def on_reset(self, stream: str, writer: str, position: Token) -> None:
        self.resets.append((writer, position))


class FollowingATrimmedStream(TrimmingCase):
    """A follower is notified of trimmed facts that matter to it."""

    def setUp(self) -> None:
        super().setUp()
        self.handler = RecordingHandler()
        self.log = RecordingLog()
        self.delivery = Delivery(self.world.scheduler, [Subscription(self.handler)], self.log)

    def follow(self, *positions: tuple[Token, Token]) -> Follower:
        """A follower to which the master announces these positions."""
        world = self.world
        follower = Follower(world.scheduler, world.catalogue, world.store, self.delivery, self.log)
        follower.connected(FakeUpstream())
        follower.received([Position("caches", "master", *ends) for ends in positions])
        return follower

    def stood(self, writer: str, position: Token) -> None:
        """Give the handler a recorded position."""
        self.delivery.consumers[0].trackers["caches", writer] = PositionTracker(position, position)

    def trim(self, upto: Token) -> None:
        self.world.clock.advance(1)
        done(self.world.store.trim(self.caches, upto, 0, 100))

    def test_a_new_follower_is_notified_of_no_loss(self) -> None:
        self.append(5)
        self.trim(3)
        follower = self.follow((5, 5))
        self.assertEqual((self.handler.resets, self.handler.tokens), ([], [4, 5]))
        self.assertEqual(follower.counts.resets, {})
        ((level, line),) = self.log.lines
        self.assertEqual(level, "info")
        self.assertIn("'caches' has been trimmed up to 3", line)

    def test_a_follower_with_a_recorded_position_is_notified_of_the_loss(self) -> None:
        self.stood("master", 0)
        self.append(5)
        self.trim(3)
        follower = self.follow((5, 5))
        self.assertEqual((self.handler.resets, self.handler.tokens), ([("master", 5)], [4, 5]))
        self.assertEqual(follower.counts.resets, {"caches": 1})

    def test_a_follower_that_was_at_zero_in_this_process_is_notified_of_the_loss(self) -> None:
        follower = self.follow((0, 0))
        self.append(5)
        self.trim(3)
        follower.received([Position("caches", "master", 5, 5)])
        self.assertEqual((self.handler.resets, self.handler.tokens), ([("master", 5)], [4, 5]))

    def test_an_idle_writer_causes_no_reset(self) -> None:
        """Its position is below the trimmed token, but it had no facts there."""
        self.append(5)
        lease = done(self.world.store.open_writer("idle", [self.caches]))
        self.addCleanup(lambda: done(lease.close()))
        follower = self.follow((5, 5))
        follower.received([Position("caches", "idle", 0, 0)])
        self.trim(5)
        follower.received([Position("caches", "idle", 2, 4)])
        self.assertEqual(self.handler.resets, [])

    def legacy(self) -> list[Command]:
        """The commands that a follower of the linear view sends when it connects."""
        world, upstream = self.world, FakeUpstream(LEGACY)
        streams = {"caches"}
        Follower(
            world.scheduler, world.catalogue, world.store, self.delivery, self.log, streams
        ).connected(upstream)
        return upstream.sent

    def test_a_legacy_follower_looks_for_trimmed_facts_before_it_subscribes(self) -> None:
        self.append(5)
        self.stood("", 2)
        self.trim(3)
        self.assertEqual(self.legacy(), [Replicate("caches", 3)])
        self.assertEqual(self.handler.resets, [("", 3)])

    def test_a_legacy_follower_that_has_lost_nothing_is_notified_of_no_loss(self) -> None:
        self.append(5)
        self.stood("", 3)
        self.trim(3)
        self.assertEqual(self.legacy(), [Replicate("caches", 3)])
        self.assertEqual(self.handler.resets, [])

    def test_a_legacy_follower_subscribes_once_the_source_is_available(self) -> None:
        self.append(5)
        self.stood("", 2)
        self.trim(3)
        self.world.store.away = True
        sent = self.legacy()
        self.assertEqual(sent, [])
        self.world.store.away = False
        self.world.clock.advance(1)
        self.assertEqual(sent, [Replicate("caches", 3)])


class TrimmedByAnotherMaster(TrimmingCase):
    """Another master trims facts that this one has not seen yet."""

    def setUp(self) -> None:
        super().setUp()
        world = self.world
        self.lost: list[tuple[str, str, Token]] = []
        self.announcer = Announcer(
            world.scheduler,
            world.store,
            [self.caches],
            world.publisher,
            world.log,
            trimmed=lambda *what: self.lost.append(what),
        )
        self.lease = done(world.store.open_writer("other", [self.caches]))
        self.addCleanup(lambda: done(self.lease.close()))
        done(self.announcer.start())
        self.addCleanup(lambda: done(self.announcer.stop()))
        self.three_more(trim=0)
        self.assertEqual(self.lost, [])

    def three_more(self, trim: Token) -> None:
        """Commit three facts; some are trimmed before this master reads them."""
        rows = [CachesRow("get_user", [str(n)], 0) for n in range(3)]
        (written,) = done(self.lease.append(self.caches, [Draft([[row] for row in rows])], 0))
        done(self.world.store.record_positions(self.caches, written.tokens[-1], {}))
        if trim:
            done(self.world.store.trim(self.caches, trim, 0, 100))
        self.announcer.wake("caches")
        self.world.clock.pump([0.1] * 10)

    def test_reports_a_loss_when_some_facts_were_not_seen(self) -> None:
        self.three_more(trim=5)
        self.assertIn(("caches", "other", 5), self.lost)
        self.assertEqual(self.announcer.states["caches"].positions["other"], 6)

    def test_reports_a_loss_when_no_fact_was_seen(self) -> None:
        self.three_more(trim=6)
        self.assertIn(("caches", "other", 6), self.lost)
        self.assertEqual(self.announcer.states["caches"].linear, 6)

    def test_reports_a_loss_when_facts_are_trimmed_during_the_read(self) -> None:
        page = self.world.store.page

        async def late(*asked: Any) -> Page:
            await self.world.store.trim(self.caches, 5, 0, 100)
            return await page(*asked)

        self.world.store.page = late  # type: ignore[method-assign]
        self.three_more(trim=0)
        self.assertEqual(self.lost, [("caches", "other", 5)])
        self.assertEqual(self.announcer.states["caches"].positions["other"], 6)


class ShrinkingSource:
    """A source that is trimmed further with each request."""

    def __init__(self, *bounds: Token) -> None:
        self.bounds = list(bounds)
        self.asked: list[Range] = []

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        self.asked.append(span)
        if self.bounds and self.bounds[0] > span.after:
            raise Trimmed(stream=stream.name, trimmed=self.bounds.pop(0), after=span.after)
        return Page((), span.upto, is_limited=False)


class SkippingTrimmedPages(TrimmingCase):
    """Reading continues while the stream is being trimmed."""

    def ask(self, source: ShrinkingSource, span: Range) -> Page:
        return done(
            page_skipping_trimmed(source, self.caches, span, 10, "somebody", self.world.log)
        )

    def test_asks_again_above_the_trimmed_facts(self) -> None:
        source = ShrinkingSource(3, 5)
        self.assertEqual(self.ask(source, Range(1, 9)).upto, 9)
        self.assertEqual(source.asked, [Range(1, 9), Range(3, 9), Range(5, 9)])

    def test_returns_an_empty_page_when_everything_is_trimmed(self) -> None:
        for bound in (9, 12):
            source: Any = ShrinkingSource(bound)
            page = self.ask(source, Range(1, 9))
            self.assertEqual((list(page.facts), page.upto, page.is_limited), ([], 9, False))
