"""State resolution against the vectors: what the reference, and other projects, resolve to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from twisted.trial.unittest import TestCase

from synrepl.rooms.chains import chains_of
from synrepl.rooms.resolution.conflict import Conflict, conflict
from synrepl.rooms.resolution.resolve import resolve
from synrepl.rooms.resolution.sorting import (
    lexicographical_topological_sort,
    reverse_topological_power_sort,
)
from synrepl.rooms.resolution.v1 import union_without_conflicts
from tests.rooms.resolution_rooms import MadeRoom, VectorRoom, shuffled, state_map
from tests.rooms.vector_files import files, lines, path_of


@cache
def _cases() -> list[tuple[VectorRoom, dict[str, Any]]]:
    return list(_read())


def _read() -> Iterator[tuple[VectorRoom, dict[str, Any]]]:
    for name in files("state_res/random_*"):
        for row in lines(name):
            room = VectorRoom(row)
            for case in row["cases"]:
                yield room, case
    for name in files("state_res/published*"):
        for row in lines(name):
            yield VectorRoom(row), row


def _conflict(case: dict[str, Any]) -> Conflict:
    return conflict([state_map(states) for states in case["state_sets"]])


class ResolutionVectors(TestCase):
    """Random and published cases."""

    def test_resolved_states_equal_those_of_the_vectors(self) -> None:
        """The resolved state, in whatever order the states come, and with chains that were not known."""
        wrong, count = [], 0
        for room, case in _cases():
            state_sets = [state_map(states) for states in case["state_sets"]]
            answers = [room.resolve(state_sets), room.resolve(shuffled(state_sets, count))]
            if count % 10 == 0:
                answers.append(resolve(room.version, state_sets, room.events.__getitem__))
            if case.get("normative", True):
                expected = state_map(case["resolved"])
                if any(answer != expected for answer in answers):
                    wrong.append(case["id"])
                count += 1
        self.assertEqual(wrong, [], f"of {count}")
        self.assertGreater(count, 900)

    def test_conflicts_equal_those_of_the_vectors(self) -> None:
        """Which events are in conflict, to begin with."""
        wrong = [
            case["id"]
            for _, case in _cases()
            if "conflicted_state_set" in case
            and _conflict(case).differing_events().events() != set(case["conflicted_state_set"])
        ]
        self.assertEqual(wrong, [])

    def test_auth_differences_equal_those_of_the_vectors(self) -> None:
        """By the reference's convention: an event of a state is part of its chain."""
        wrong = []
        for room, case in _cases():
            if "auth_difference" in case:
                found = _conflict(case)
                difference = room.chains.difference(
                    found.differing_events(), found.unconflicted_events()
                )
                if difference != set(case["auth_difference"]):
                    wrong.append(case["id"])
        self.assertEqual(wrong, [])

    def test_conflicted_subgraphs_equal_those_of_the_vectors(self) -> None:
        """The paths between events in conflict."""
        wrong = []
        for room, case in _cases():
            if "conflicted_state_subgraph" in case:
                subgraph = room.chains.subgraph(case["conflicted_state_set"])
                if subgraph != set(case["conflicted_state_subgraph"]):
                    wrong.append(case["id"])
        self.assertEqual(wrong, [])


class LargeResolutions(TestCase):
    """Two branches with thousands of events in conflict."""

    def test_resolved_states_equal_those_of_the_vectors(self) -> None:
        """The resolved state."""
        names = files("perf/state_res_*")
        self.assertGreater(len(names), 1)
        for name in names:
            (row,) = lines(name)
            room = VectorRoom(row)
            resolved = room.resolve([state_map(states) for states in row["state_sets"]])
            self.assertEqual(resolved, state_map(row["resolved"]), row["id"])


class EventGraphs(TestCase):
    """Small facts about graphs of a few letters."""

    def setUp(self) -> None:
        self.facts = json.loads(path_of("state_res/graphs.json").read_text())
        self.room = MadeRoom()
        for event_id, cites in self.facts["auth_edges"].items():
            self.room.add(event_id, "t", cites=cites)
        self.chains = chains_of(self.room.events, self.room.events.__getitem__)

    def test_chains_and_subgraphs_equal_those_of_the_vectors(self) -> None:
        """What is in an auth chain, and between events."""
        for case in self.facts["cases"]:
            chains = set().union(*map(self.chains.chain, case["start"]))
            # The vectors leave out of the union what was asked about.
            expected = set(case["auth_chain_excluding_start"])
            self.assertLessEqual(expected, chains, case["id"])
            self.assertLessEqual(chains - expected, set(case["start"]), case["id"])
            if "conflicted" in case:
                self.assertEqual(
                    self.chains.subgraph(case["conflicted"]),
                    set(case["conflicted_subgraph"]),
                    case["id"],
                )

    def test_lexicographical_topological_sort(self) -> None:
        """What is depended on first, then by rank."""
        case = self.facts["lexicographic_topological_sort"]
        self.assertEqual(
            lexicographical_topological_sort(case["edges"], lambda each: (each,)), case["order"]
        )

    def test_reverse_topological_power_sort(self) -> None:
        """The powerful first, then the early, then by ID."""
        case = self.facts["power_order"]
        room = MadeRoom()
        levels = {f"@{event_id}:x": level for event_id, level, _ in case["items"]}
        room.add("create", "m.room.create", content={"creator": "@z:x"})
        room.add("levels", "m.room.power_levels", content={"users": levels}, cites=["create"])
        selected = {
            event_id: room.add(
                event_id, "t", sender=f"@{event_id}:x", cites=["create", "levels"], ts=ts
            )
            for event_id, _, ts in case["items"]
        }
        ordered = reverse_topological_power_sort(selected, room.events.__getitem__, {"levels"})
        self.assertEqual([event.event_id for event in ordered], case["order"])

    def test_unconflicted_and_conflicted_entries(self) -> None:
        """What is in conflict: to version 2, also what a state lacks."""
        for case in self.facts["split"]:
            found = conflict([state_map(states) for states in case["state_sets"]])
            candidates = found.candidates()
            agreed = set(found.unconflicted_events())
            if case["algorithm"] == "v1":
                alone = union_without_conflicts(candidates)
                agreed.update(alone.values())
                candidates = {key: candidates[key] for key in candidates if key not in alone}
            self.assertEqual(agreed, set(case["unconflicted"]), case)
            self.assertEqual(set().union(*candidates.values()), set(case["conflicted"]), case)
