"""The resync gets to the end, in an order in which each verdict leans on none that is still to be."""

from __future__ import annotations

from unittest import TestCase

from synrepl.rooms.judged import UnknownEvents
from synrepl.rooms.partial import resync
from tests.rooms.auth_rooms import BOB, CAROL
from tests.rooms.small_rooms import SmallRoom


class Order(TestCase):
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

    def test_an_event_that_came_before_what_it_follows(self) -> None:
        parent = self.small.message(self.join)
        early = self.small.message(parent, depth=1)
        self.partial.add_with_state(early, self.whole)
        self.partial.receive(parent)
        order = [judged.event.event_id for judged in self.room.topologically()]
        self.assertLess(order.index(early.event_id), order.index(parent.event_id))
        self.assertEqual(self.room.forward_extremities, {early.event_id})
        self.resync()
        self.assertEqual(self.room.forward_extremities, {early.event_id})

    def test_a_chain_that_came_the_wrong_way_round(self) -> None:
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

    def test_what_comes_meanwhile_and_stands_before_the_rest(self) -> None:
        last = self.small.message(self.join)
        self.partial.receive(last)
        pending = self.partial.pending()
        self.partial.resync(next(pending).event_id, self.whole)
        between = self.small.message(self.small.message(), depth=1)
        self.partial.add_with_state(between, self.whole)
        for event_id, _ in pending:
            self.partial.resync(event_id)
        self.assertFalse(self.partial.is_partial)

    def test_what_an_event_cites_is_judged_before_it(self) -> None:
        small = self.small
        gone = small.member(CAROL, "leave", [small.carol], [small.create, small.carol])
        self.partial.add_outliers([gone, small.carol])
        x = small.message(self.join)
        content = {"state_default": 0, "events_default": 0}
        cites = [small.create, small.carol, small.levels]
        levels = small.event("m.room.power_levels", content, [x], cites, CAROL, "")
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

    def test_who_resyncs_nothing_is_told_of_the_join_alone(self) -> None:
        self.partial.receive(self.small.message(self.join))
        self.assertEqual([each.event_id for each in self.partial.pending()], [self.join.event_id])


class MadeUpIds(TestCase):
    """Room version 1: events can stand in a circle."""

    def setUp(self) -> None:
        self.small = SmallRoom("1")

    def test_events_that_follow_one_another(self) -> None:
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

    def test_outliers_that_cite_one_another(self) -> None:
        small = self.small
        partial, _ = small.joined()
        one = small.event("t", {}, [], [], event_id="$one:a", auth_events=[["$two:a", {}]])
        two = small.event("t", {}, [], [one], event_id="$two:a")
        with self.assertRaisesRegex(UnknownEvents, "one:a of room .* event .two:a can be judged"):
            partial.add_outliers([two, one])
        self.assertNotIn(one.event_id, partial.room)


class Outliers(TestCase):
    """What was taken in, and what waited for it, is told."""

    def test_what_waited_is_among_them(self) -> None:
        small = SmallRoom()
        partial, join = small.joined()
        waits = small.event("t", {}, [join], [small.create, small.carol], CAROL)
        bob = small.member(BOB, "join", [small.rules], [small.create, small.rules])
        self.assertEqual(partial.receive(waits), [])
        judged = partial.add_outliers([small.carol, bob, small.create])
        ids = [each.event.event_id for each in judged]
        self.assertEqual(sorted(ids), sorted(e.event_id for e in (small.carol, waits, bob)))

    def test_a_told_state_is_known_even_of_an_event_that_is_here(self) -> None:
        small = SmallRoom()
        partial, join = small.joined()
        unknown = {("m.room.topic", ""): "$unheard-of"}
        self.assertRaises(UnknownEvents, partial.add_with_state, join, unknown)
