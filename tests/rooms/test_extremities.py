"""Forward extremities. Those of whole rooms: ``test_rooms``."""

from __future__ import annotations

from typing import NamedTuple
from unittest import TestCase

from synrepl.rooms.extremities import ForwardExtremities, superseded_by


class Known(NamedTuple):
    prev_event_ids: tuple[str, ...]
    passed_all_checks: bool = True


class ForwardExtremitiesTests(TestCase):
    def setUp(self) -> None:
        self.known: dict[str, Known] = {}
        self.ends = ForwardExtremities()

    def add(self, event_id: str, *prev: str, passed_all_checks: bool = True) -> set[str]:
        event = Known(prev, passed_all_checks)
        self.ends.add(event_id, event, self.known.get)
        self.known[event_id] = event
        return set(self.ends.event_ids)

    def test_an_event_replaces_its_prev_events(self) -> None:
        self.assertEqual(self.add("a"), {"a"})
        self.assertEqual(self.add("b", "a"), {"b"})
        self.assertEqual(self.add("c", "a"), {"b", "c"})
        self.assertEqual(self.add("d", "b", "c"), {"d"})

    def test_a_rejected_event_changes_nothing(self) -> None:
        self.add("a")
        self.assertEqual(self.add("bad", "a", passed_all_checks=False), {"a"})

    def test_an_event_on_a_rejected_one_replaces_that_ones_prev_events(self) -> None:
        """It follows what that one follows, however many do not count."""
        self.add("a")
        self.add("b", "a")
        self.add("bad", "b", passed_all_checks=False)
        self.add("worse", "bad", passed_all_checks=False)
        self.assertEqual(self.add("c", "worse"), {"c"})

    def test_goes_back_only_to_the_nearest_accepted_events(self) -> None:
        """``a`` was left behind by ``b`` already; that another follows ``b`` is not looked into."""
        self.add("a")
        self.add("b", "a")
        self.assertEqual(superseded_by(["b"], self.known.get), {"b"})

    def test_an_unknown_prev_event_never_becomes_one(self) -> None:
        self.add("a")
        self.assertEqual(self.add("b", "elsewhere"), {"a", "b"})

    def test_an_event_that_arrives_after_its_successor_is_none(self) -> None:
        self.add("a")
        self.add("c", "b")
        self.assertEqual(self.add("b", "a"), {"c"})
        self.assertEqual(self.add("d", "b"), {"c", "d"})

    def test_a_rejected_event_that_arrives_after_its_successor(self) -> None:
        self.add("a")
        self.add("c", "worse")
        self.assertEqual(self.add("worse", "bad", passed_all_checks=False), {"a", "c"})
        self.assertEqual(self.add("bad", "a", passed_all_checks=False), {"c"})

    def test_a_long_chain_of_rejected_events_is_walked_once(self) -> None:
        self.add("0")
        for n in range(1, 200):
            self.add(f"{n}", f"{n - 1}", passed_all_checks=False)
        looked_up = []

        def find(event_id: str) -> Known | None:
            looked_up.append(event_id)
            return self.known.get(event_id)

        for n in range(200):
            self.ends.add(f"after {n}", Known(("199",)), find)
        self.assertEqual(self.ends.event_ids, {f"after {n}" for n in range(200)})
        self.assertLess(len(looked_up), 1000)

    def test_a_cycle_of_events_ends(self) -> None:
        self.known = {"x": Known(("y",), False), "y": Known(("x", "y"), False)}
        self.assertEqual(superseded_by(["x"], self.known.get), {"x", "y"})
