"""What the demo of two servers finds and shows: each difference between the servers, and how far the resync is."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any
from unittest import TestCase

from rich.console import Console
from signedjson.key import generate_signing_key

from synrepl.cli.demo.rooms.comparison import ComparedCopies, RoomCopy, compare
from synrepl.cli.demo.rooms.members import VERSION, LargeRoom
from synrepl.cli.demo.rooms.report import JoinSeconds, RoomsResult, rooms_report
from synrepl.cli.demo.rooms.resync_display import ResyncDisplay
from synrepl.rooms import Room, room_version
from synrepl.storage.rooms.reading.partial_states import ResyncProgressRow
from synrepl.storage.rooms.tables.partial_rooms import ResyncPhase

NAME = ("m.room.name", "")


def copy(**changed: Any) -> RoomCopy:
    """What a server has of a small room."""
    state = {NAME: "$name"}
    same: Mapping[str, Any] = {
        "current": state,
        "verdicts": {"$name": 0, "$join": 0, "$said": 0},
        "timeline": ["$join", "$said"],
        "states": {"$join": state, "$said": state},
        "unfinished": 0,
    }
    return RoomCopy(**{**same, **changed})


class ComparedServers(TestCase):
    def test_that_are_equal_have_no_problem(self) -> None:
        only_here = copy(verdicts={**copy().verdicts, "$before the join": 0})
        self.assertEqual(compare(only_here, copy()), ComparedCopies([], 1, 3, 2))
        self.assertEqual(compare(copy(timeline=["$said", "$join"]), copy()).problems, [])

    def test_that_differ_in_anything_have_one(self) -> None:
        other = {NAME: "$other"}
        verdicts = copy().verdicts
        for changed, words in (
            ({"current": other}, "1 difference in the current state"),
            (
                {"current": {**copy().current, ("a", ""): "$join"}},
                "1 difference in the current state",
            ),
            ({"verdicts": {**verdicts, "$said": 2}}, "1 difference in the verdicts"),
            ({"timeline": ["$join"]}, "1 event in the timeline of one only, such as $said"),
            ({"timeline": ["$join", "$said", "$x"]}, "in the timeline of two only, such as $x"),
            (
                {"states": {**copy().states, "$said": other}},
                "1 difference in the state after $said",
            ),
            ({"verdicts": {"$join": 0, "$said": 0}}, "1 event of the state not stored"),
            ({"unfinished": 3}, "3 verdicts not final"),
        ):
            problems = compare(copy(), copy(**changed)).problems
            self.assertTrue(any(words in each for each in problems), (words, problems))


class RoomsReport(TestCase):
    def shown(self, killed: str | None = "fetching", *problems: str) -> str:
        seconds = JoinSeconds(0.5, 1.0, 5.0, 10.0)
        compared = (ComparedCopies([], 3007, 3200, 90), ComparedCopies([], 3006, 3005, 1))
        result = RoomsResult(3000, seconds, killed, (40, 30), compared, problems)
        console = Console(file=io.StringIO(), width=120)
        console.print(*rooms_report(result), sep="\n")
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    def test_has_bars_as_long_as_the_seconds(self) -> None:
        lines = [line for line in self.shown().splitlines() if "█" in line]
        self.assertEqual([line.count("█") for line in lines], [2, 5, 24, 48])

    def test_says_what_is_verified_or_what_is_wrong(self) -> None:
        good = self.shown()
        self.assertIn("3,007 entries", good)
        self.assertIn("Not verified:", good)
        self.assertNotIn("A kill in the middle", good)
        self.assertIn("A kill in the middle: the room was complete before", self.shown(None))
        bad = self.shown("fetching", *(f"problem {number}" for number in range(25)))
        self.assertIn("FAILED", bad)
        self.assertIn("25 problems:", bad)
        self.assertIn("problem 19\n  and 5 more", bad)
        self.assertNotIn("Verified", bad)


class LargeRooms(TestCase):
    def test_hold_by_the_rules_of_rooms(self) -> None:
        room = LargeRoom("!large:a.example", "@alice:a.example", 40, generate_signing_key("1"))
        whole = Room(room_version(VERSION))
        for event in room.events():
            (judged,) = whole.receive(event)
            self.assertIsNone(judged.refusal)
        state = whole.current_state()
        self.assertEqual(len(state), 40 + 5)
        self.assertIn(("m.room.member", room.member(39)), state)
        self.assertEqual(len(whole), 40 + 5 + 3)


class ResyncProgressDisplay(TestCase):
    def test_has_a_line_for_each_phase_and_each_fifth_of_the_events(self) -> None:
        console = Console(file=io.StringIO(), width=120)
        display = ResyncDisplay(console)
        display.show(self.progress(ResyncPhase.IDS, 0, 0))
        for done in range(101):
            display.show(self.progress(ResyncPhase.EVENTS, done, 0))
        for done in range(101):
            display.show(self.progress(ResyncPhase.EVENTS, 100 - done, done))
        display.show(self.progress(ResyncPhase.DONE, 0, 100))
        display.close()
        assert isinstance(console.file, io.StringIO)
        lines = console.file.getvalue().splitlines()
        self.assertEqual(len(lines), 1 + 6 + 1)
        self.assertEqual(lines[-1].strip(), "done")

    def test_moves_a_bar_on_a_terminal(self) -> None:
        console = Console(file=io.StringIO(), width=120, force_terminal=True)
        display = ResyncDisplay(console)
        display.show(self.progress(ResyncPhase.EVENTS, 10, 0))
        display.log("something happened")
        display.show(self.progress(ResyncPhase.EVENTS, 20, 0))
        display.close()
        assert isinstance(console.file, io.StringIO)
        self.assertIn("something happened", console.file.getvalue())

    def progress(self, phase: ResyncPhase, fetched: int, stored: int) -> ResyncProgressRow:
        return ResyncProgressRow(
            "!a:b", phase, 100, 100, fetched, stored, 0, 0, None, None, "b", 1, 1, 1, 1, 0
        )
