"""The topological and the stream order."""

from __future__ import annotations

import random
from typing import Any
from unittest import TestCase

from synrepl.rooms.event import Event
from synrepl.rooms.ordering import (
    MAX_DEPTH,
    EventOrdering,
    StreamOrder,
    topological_ordering,
    topological_sort,
)
from synrepl.rooms.versions import V10


def made(event_id: str, *prev: str, depth: int = 1) -> Event:
    fields: dict[str, Any] = {}
    return Event(
        raw=b"",
        version=V10,
        fields=fields,
        event_id=event_id,
        room_id="!r",
        type="m.room.message",
        sender="@a:x",
        state_key=None,
        content=fields,
        depth=depth,
        origin_server_ts=0,
        prev_event_ids=prev,
        auth_event_ids=(),
    )


class EventOrderings(TestCase):
    def test_compare_by_topological_then_by_stream_ordering(self) -> None:
        places = [
            EventOrdering(2, -1),
            EventOrdering(1, 9),
            EventOrdering(2, 4),
            EventOrdering(3, 1),
            EventOrdering(2, -2),
        ]
        self.assertEqual(
            sorted(places),
            [
                EventOrdering(1, 9),
                EventOrdering(2, -2),
                EventOrdering(2, -1),
                EventOrdering(2, 4),
                EventOrdering(3, 1),
            ],
        )

    def test_the_stream_ordering_grows_at_both_ends(self) -> None:
        order = StreamOrder(5, -2)
        self.assertEqual([order.next(), order.next_older(), order.next()], [6, -3, 7])
        self.assertEqual([order.next_older(), order.newest], [-4, 7])

    def test_the_topological_ordering_is_one_more_than_that_of_prev_events(self) -> None:
        self.assertEqual(topological_ordering(1, []), 1)
        self.assertEqual(topological_ordering(4, [3, 1]), 4)

    def test_a_wrong_depth_is_ignored(self) -> None:
        self.assertEqual(topological_ordering(MAX_DEPTH, [3]), 4)
        self.assertEqual(topological_ordering(-7, [3]), 4)
        self.assertEqual(topological_ordering(0, []), 1)

    def test_depth_is_used_where_prev_events_are_missing(self) -> None:
        self.assertEqual(topological_ordering(40, [3], all_known=False), 40)
        self.assertEqual(topological_ordering(2, [3], all_known=False), 4)
        self.assertEqual(topological_ordering(10**30, [], all_known=False), MAX_DEPTH)
        self.assertEqual(topological_ordering(5, [MAX_DEPTH]), MAX_DEPTH)


class TopologicalSort(TestCase):
    def test_dependencies_come_first_whatever_the_input_order(self) -> None:
        rng = random.Random(7)
        events = [made("0")]
        for n in range(1, 200):
            prev = {str(rng.randrange(n)) for _ in range(rng.choice([1, 1, 2, 3]))}
            events.append(made(str(n), *sorted(prev), depth=rng.randrange(5)))
        orders = set()
        for _ in range(5):
            rng.shuffle(events)
            done, circles = topological_sort(events)
            self.assertEqual(circles, [])
            at = {event.event_id: n for n, event in enumerate(done)}
            self.assertEqual(len(at), 200)
            for event in done:
                for parent in event.prev_event_ids:
                    self.assertLess(at[parent], at[event.event_id])
            orders.add(tuple(at))
        self.assertEqual(len(orders), 1)

    def test_ties_are_broken_by_the_sort_key(self) -> None:
        events = [made("a"), made("c", "a", depth=2), made("b", "a", depth=3), made("d", "x")]
        done, _ = topological_sort(events)
        self.assertEqual([event.event_id for event in done], ["a", "d", "c", "b"])
        done, _ = topological_sort(events, tie_break=lambda event: (-ord(event.event_id), ""))
        self.assertEqual([event.event_id for event in done], ["d", "a", "c", "b"])

    def test_cycles_are_returned_separately(self) -> None:
        events = [made("a", "c"), made("b", "a"), made("c", "b"), made("d"), made("e", "a", "d")]
        done, circles = topological_sort(events)
        self.assertEqual([event.event_id for event in done], ["d"])
        self.assertEqual([event.event_id for event in circles], ["a", "b", "c", "e"])

    def test_duplicates_are_dropped(self) -> None:
        events = [made("a"), made("a"), made("b", "a", "a")]
        done, circles = topological_sort(events)
        self.assertEqual([event.event_id for event in done], ["a", "b"])
        self.assertEqual(circles, [])
