"""The resync gets to the end, in an order in which each verdict leans on none that is still to be."""

from __future__ import annotations

from unittest import TestCase

from synrepl.rooms.event import Event
from synrepl.rooms.event_types import MEMBER, POWER_LEVELS
from synrepl.rooms.judged import Judged, UnknownEvents
from synrepl.rooms.partial import NotNext, Resynced, resync
from synrepl.rooms.state_map import Delta
from tests.rooms.auth_rooms import ALICE, BOB, CAROL
from tests.rooms.small_rooms import SmallRoom


class ResyncOrder(TestCase):
    """From the join down, whatever came when."""

    def setUp(self) -> None:
        self.small = small = SmallRoom()
        self.partial, self.join = small.joined()
        self.room = self.partial.room
        self.whole = small.state(*small.base)

    def resync(self) -> None:
        resync(self.partial, {self.join.event_id: self.whole})
        self.assertFalse(self.partial.is_partial)
        self.assertEqual(list(self.partial.pending()), [])

    def test_an_event_that_arrived_before_its_prev_event(self) -> None:
        parent = self.small.message(self.join)
        early = self.small.message(parent, depth=1)
        self.partial.add_with_state(early, self.whole)
        self.partial.receive(parent)
        order = [judged.event.event_id for judged in self.room.in_topological_order()]
        self.assertLess(order.index(early.event_id), order.index(parent.event_id))
        self.assertEqual(self.room.forward_extremities, {early.event_id})
        self.resync()
        self.assertEqual(self.room.forward_extremities, {early.event_id})

    def test_a_chain_that_arrived_in_reverse(self) -> None:
        chain = [self.join]
        for _ in range(12):
            chain.append(self.small.message(chain[-1], depth=1))
        for event in reversed(chain[1:]):
            self.partial.add_with_state(event, self.whole)
        done = []
        for pending in self.partial.pending():
            self.partial.resync(pending.event_id, self.whole if pending.state_needed else None)
            done.append(pending.event_id)
        self.assertEqual(done, [event.event_id for event in chain])
        self.assertFalse(self.partial.is_partial)

    def test_an_event_that_arrives_meanwhile_and_precedes_the_rest(self) -> None:
        last = self.small.message(self.join)
        self.partial.receive(last)
        pending = self.partial.pending()
        self.partial.resync(next(pending).event_id, self.whole)
        between = self.small.message(self.small.message(), depth=1)
        self.partial.add_with_state(between, self.whole)
        for event_id, _ in pending:
            self.partial.resync(event_id)
        self.assertFalse(self.partial.is_partial)

    def test_auth_events_are_judged_before_the_event(self) -> None:
        small = self.small
        gone = small.member(CAROL, "leave", [small.carol], [small.create, small.carol])
        self.partial.add_outliers([gone, small.carol])
        x = small.message(self.join)
        content = {"state_default": 0, "events_default": 0}
        cites = [small.create, small.carol, small.levels]
        levels = small.event(POWER_LEVELS, content, [x], cites, CAROL, "")
        cites = [small.create, small.alice, levels]
        citing = small.event("m.room.message", {}, [self.join], cites)
        for event in (x, levels, citing):
            (judged,) = self.partial.receive(event)
            self.assertTrue(judged.accepted)
        self.whole |= small.state(gone)
        self.resync()
        self.assertFalse(self.room[levels.event_id].accepted)
        refusal = self.room[citing.event_id].refusal
        assert refusal is not None
        self.assertEqual(refusal.code, "cites-rejected")

    def test_only_the_join_is_pending_until_it_is_resynced(self) -> None:
        self.partial.receive(self.small.message(self.join))
        self.assertEqual([each.event_id for each in self.partial.pending()], [self.join.event_id])


class Cycles(TestCase):
    """Room version 1: events can stand in a circle."""

    def setUp(self) -> None:
        self.small = SmallRoom("1")

    def test_events_in_a_cycle_of_prev_events_come_last(self) -> None:
        small = self.small
        partial, join = small.joined()
        whole = small.state(*small.base)
        one = small.message(join, event_id="$one:a", prev_events=[["$two:a", {}]])
        two = small.message(one, event_id="$two:a")
        after = small.message(two)
        partial.add_with_state(one, whole)
        for event in (two, after):
            self.assertEqual(len(partial.receive(event)), 1)
        changed = resync(partial, {join.event_id: whole})
        self.assertEqual(changed.wrongly_accepted, [])
        self.assertFalse(partial.is_partial)

    def test_outliers_in_a_cycle_of_auth_events_are_refused(self) -> None:
        small = self.small
        partial, _ = small.joined()
        one = small.event("t", {}, [], [], event_id="$one:a", auth_events=[["$two:a", {}]])
        two = small.event("t", {}, [], [one], event_id="$two:a")
        with self.assertRaisesRegex(UnknownEvents, "one:a of room .* event .two:a can be judged"):
            partial.add_outliers([two, one])
        self.assertNotIn(one.event_id, partial.room)


class OutliersDuringTheResync(TestCase):
    """A resync returns the events that it judged, and those that waited for them."""

    def test_events_that_waited_are_resynced(self) -> None:
        small = SmallRoom()
        partial, join = small.joined()
        waits = small.event("t", {}, [join], [small.create, small.carol], CAROL)
        bob = small.member(BOB, "join", [small.rules], [small.create, small.rules])
        self.assertEqual(partial.receive(waits), [])
        judged = partial.add_outliers([small.carol, bob, small.create])
        ids = [each.event.event_id for each in judged]
        self.assertEqual(sorted(ids), sorted(e.event_id for e in (small.carol, waits, bob)))

    def test_an_event_that_was_released_meanwhile_is_resynced(self) -> None:
        small = SmallRoom()
        partial, join = small.joined()
        bob = small.member(BOB, "join", [join], [small.create, small.carol])
        self.assertEqual(partial.receive(bob), [])
        judged = partial.add_outliers([bob, small.carol])
        self.assertEqual([each.event.event_id for each in judged],
                         [small.carol.event_id, bob.event_id])  # fmt: skip
        self.assertIn(bob.event_id, partial.room.partial_event_ids)

    def test_a_reported_state_is_used_for_a_known_event(self) -> None:
        small = SmallRoom()
        partial, join = small.joined()
        unknown = {("m.room.topic", ""): "$unheard-of"}
        self.assertRaises(UnknownEvents, partial.add_with_state, join, unknown)


class UnconfirmedOutliers(TestCase):
    """Outliers that cite what is resynced: their verdict leans on it, and others' on theirs."""

    def setUp(self) -> None:
        self.small = small = SmallRoom(users={CAROL: 50})
        self.partial, self.join = small.joined()
        self.room = self.partial.room
        gone = small.member(CAROL, "leave", [small.carol], [small.create, small.carol])
        bob = small.member(BOB, "join", [small.rules], [small.create, small.rules])
        self.partial.add_outliers([small.carol, gone, bob])
        self.whole = small.state(*small.base, gone, bob)
        # Carol, who is gone, throws Bob out; that she is gone is not known before the resync.
        cites = [small.create, small.levels, small.carol, bob]
        kick = small.event(MEMBER, {"membership": "leave"}, [self.join], cites, CAROL, BOB)
        self.bobs = self.levels([kick], [small.create, small.levels, bob], BOB)
        for event, accepted in (kick, True), (self.bobs, False):
            (judged,) = self.partial.receive(event)
            self.assertEqual(judged.accepted, accepted)
        cites = [small.create, small.alice, self.bobs]
        self.alices = self.levels([self.bobs], cites, ALICE)
        (judged,) = self.partial.add_outliers([self.alices])
        self.assertEqual(code(judged), "cites-rejected")

    def levels(self, follows: list[Event], cites: list[Event], sender: str) -> Event:
        content = {**self.small.levels.content, "events": {"t": 0, sender: 0}}
        return self.small.event(POWER_LEVELS, content, follows, cites, sender, "")

    def resync(self) -> Resynced:
        found = resync(self.partial, {self.join.event_id: self.whole})
        self.assertFalse(self.partial.is_partial)
        self.assertTrue(self.room[self.bobs.event_id].accepted)
        return found

    def test_are_judged_again(self) -> None:
        changed = self.resync()
        self.assertEqual(changed.wrongly_rejected, [self.bobs.event_id, self.alices.event_id])
        self.assertFalse(self.room.has_state(self.alices.event_id))

    def test_are_judged_before_events_that_depend_on_them(self) -> None:
        cites = [self.small.create, self.small.alice, self.alices]
        further = self.small.event("t", {}, [self.small.message()], cites, key="outlier")
        citing = self.small.event("t", {}, [self.join], cites)
        (outlier,) = self.partial.add_outliers([further])
        (judged,) = self.partial.receive(citing)
        self.assertEqual([code(outlier), code(judged)], ["cites-rejected"] * 2)
        self.resync()
        for event in (further, citing):
            self.assertTrue(self.room[event.event_id].accepted)

    def test_are_confirmed_once_their_auth_events_were_resynced(self) -> None:
        for pending in self.partial.pending():
            state = self.whole if pending.state_needed else None
            change = self.partial.resync(pending.event_id, state)
            if pending.event_id == self.bobs.event_id:
                break
        self.assertTrue(change.wrongly_rejected)
        cites = [self.small.create, self.small.alice, self.bobs]
        (judged,) = self.partial.add_outliers([self.small.event("t", {}, [], cites, key="a")])
        self.assertTrue(judged.accepted)
        self.assertEqual([each.event_id for each in self.partial.pending()], [self.alices.event_id])

    def test_one_that_is_received_in_the_stream_is_judged_in_full(self) -> None:
        (judged,) = self.partial.receive(self.alices)
        self.assertTrue(judged.partial)
        changed = self.resync()
        self.assertEqual(changed.wrongly_rejected, [self.bobs.event_id, self.alices.event_id])
        self.assertFalse(self.room[self.alices.event_id].partial)

    def test_one_that_is_received_after_it_was_judged_again(self) -> None:
        late = self.small.message(self.join)
        self.partial.receive(late)
        for pending in self.partial.pending():
            if pending.event_id != late.event_id:
                state = self.whole if pending.state_needed else None
                change = self.partial.resync(pending.event_id, state)
        self.assertEqual(change.now.event.event_id, self.alices.event_id)
        self.assertEqual(change.state_before, Delta({}))
        self.partial.receive(self.alices)
        left = {each.event_id for each in self.partial.pending()}
        self.assertEqual(left, {late.event_id, self.alices.event_id})
        self.resync()

    def test_other_outliers_are_not_judged_again(self) -> None:
        with self.assertRaisesRegex(NotNext, "nothing to find out"):
            self.partial.resync(self.small.carol.event_id)


def code(judged: Judged) -> str | None:
    return None if judged.refusal is None else judged.refusal.code
