"""Syncs that wait: woken by what concerns them, and by nothing else."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.news_feed import NewsFeed
from synrepl.services.rooms.news.waiting_syncs import TooManySyncs, WaitingSyncs
from synrepl.streams.definition import Fact
from synrepl.streams.row import Row
from synrepl.streams.synapse.account_data import AccountDataRow
from synrepl.streams.synapse.events import EventRow, StateRow
from synrepl.streams.synapse.receipts import ReceiptRow
from tests.services.world import manual_clock


def event(room_id: str) -> EventRow:
    """A message in a room."""
    return EventRow("$e", room_id, "m.room.message", None, None, None)


class WaitingCase(SynchronousTestCase):
    """Users in rooms, and the streams of a process."""

    def setUp(self) -> None:
        self.clock = manual_clock()
        scheduler = TwistedScheduler(self.clock)
        self.rooms = {"@a:x": frozenset({"!1", "!2"}), "@b:x": frozenset({"!2"})}
        self.loads: list[str] = []
        self.applied = AppliedVectors(scheduler, "x")
        self.waits = WaitingSyncs(scheduler, self.applied, self.rooms_of, 5, 6)
        feed = NewsFeed([self.waits])
        self.feed = feed
        self.applied.listeners.append(feed.moved)
        self.applied.moved("events", "w", 1)

    async def rooms_of(self, user_id: str) -> frozenset[str]:
        self.loads.append(user_id)
        return self.rooms.get(user_id, frozenset())

    def wait(self, user_id: str, timeout_s: float = 30.0) -> Deferred[Any]:
        """Begin to wait."""
        return Deferred.fromCoroutine(self.waits.wait(user_id, self.applied.current(), timeout_s))

    def happen(self, stream: str, token: int, *rows: Row) -> None:
        """A fact of the writer is applied, and its position moves."""
        self.feed.applied(stream, "w", [Fact(token, "w", rows)])
        self.applied.moved(stream, "w", token)
        self.clock.advance(0)
        self.clock.advance(0)


class Waking(WaitingCase):
    """Who is woken by what."""

    def test_an_event_wakes_those_in_its_room(self) -> None:
        one, two, other = self.wait("@a:x"), self.wait("@b:x"), self.wait("@c:x")
        self.happen("events", 2, event("!1"))
        self.assertTrue(self.successResultOf(one))
        self.assertNoResult(two)
        self.happen("events", 3, event("!2"))
        self.assertTrue(self.successResultOf(two))
        self.assertNoResult(other)
        self.assertEqual(len(self.waits), 1)

    def test_a_receipt_wakes_those_in_its_room_and_a_private_one_its_user_alone(self) -> None:
        one, two = self.wait("@a:x"), self.wait("@b:x")
        self.happen("receipts", 2, ReceiptRow("!2", "m.read.private", "@b:x", "$e", {"ts": 1}))
        self.assertNoResult(one)
        self.assertTrue(self.successResultOf(two))
        two = self.wait("@b:x")
        self.happen("receipts", 3, ReceiptRow("!1", "m.read", "@b:x", "$e", {"ts": 1}))
        self.assertTrue(self.successResultOf(one))
        self.assertNoResult(two)

    def test_nobody_is_woken_before_the_position_has_moved(self) -> None:
        waiting = self.wait("@a:x")
        self.feed.applied("events", "w", [Fact(3, "w", (event("!1"),))])
        self.clock.advance(1)
        self.assertNoResult(waiting)
        self.applied.moved("events", "w", 2)
        self.clock.advance(1)
        self.assertNoResult(waiting)
        self.applied.moved("events", "w", 3)
        self.clock.advance(1)
        self.assertTrue(self.successResultOf(waiting))

    def test_a_change_of_membership_wakes_the_user_and_others_rooms_count_from_then_on(
        self,
    ) -> None:
        waiting = self.wait("@b:x")
        self.rooms["@b:x"] = frozenset({"!3"})
        self.happen("events", 2, StateRow("!3", "m.room.member", "@b:x", "$m"))
        self.assertTrue(self.successResultOf(waiting))
        waiting = self.wait("@b:x")
        self.happen("events", 3, event("!2"))
        self.assertNoResult(waiting)
        self.happen("events", 4, event("!3"))
        self.assertTrue(self.successResultOf(waiting))

    def test_account_data_wakes_its_user(self) -> None:
        one, two = self.wait("@a:x"), self.wait("@b:x")
        self.happen("account_data", 1, AccountDataRow("@b:x", None, "m.direct"))
        self.assertNoResult(one)
        self.assertTrue(self.successResultOf(two))

    def test_lost_facts_wake_everybody(self) -> None:
        waiting = [self.wait("@a:x"), self.wait("@c:x")]
        self.feed.unknown_upto("events", "w", 9)
        self.clock.advance(0)
        self.clock.advance(0)
        self.assertTrue(all(map(self.successResultOf, waiting)))

    def test_what_has_moved_since_the_check_ends_the_wait_at_once(self) -> None:
        before = self.applied.current()
        self.happen("events", 2, event("!1"))
        waiting = Deferred.fromCoroutine(self.waits.wait("@a:x", before, 30))
        self.assertTrue(self.successResultOf(waiting))


class Bounds(WaitingCase):
    """Waits end, and leave nothing behind."""

    def test_a_wait_ends_in_time(self) -> None:
        waiting = self.wait("@a:x", 2)
        self.clock.advance(1.9)
        self.assertNoResult(waiting)
        self.clock.advance(0.1)
        self.assertFalse(self.successResultOf(waiting))
        self.assertEqual((len(self.waits), self.clock.getDelayedCalls()), (0, []))

    def test_a_client_that_vanishes_leaves_nothing(self) -> None:
        waiting = self.wait("@a:x")
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        self.assertEqual((len(self.waits), self.clock.getDelayedCalls()), (0, []))
        self.happen("events", 2, event("!1"))

    def test_a_user_is_watched_over_successive_waits(self) -> None:
        for token in range(2, 6):
            waiting = self.wait("@a:x")
            self.happen("events", token, event("!1"))
            self.successResultOf(waiting)
        self.assertEqual(self.loads, ["@a:x"])

    def test_the_index_is_bounded(self) -> None:
        for number in range(10):
            self.rooms[f"@{number}:x"] = frozenset({f"!{number}a", f"!{number}b", f"!{number}c"})
            waiting = self.wait(f"@{number}:x", 1)
            self.clock.advance(1)
            self.successResultOf(waiting)
            self.assertLessEqual(self.waits.indexed, 6)

    def test_waits_are_limited(self) -> None:
        waiting = [self.wait("@a:x") for _ in range(5)]
        self.failureResultOf(self.wait("@a:x"), TooManySyncs)
        waiting[0].cancel()
        self.failureResultOf(waiting[0], CancelledError)
        self.assertNoResult(self.wait("@a:x"))
