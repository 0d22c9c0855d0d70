"""RealServerRecordings of real servers keep the rules; each rule finds the breach in a modified one."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.core.errors import InputError
from synrepl.tools.judge.judge import (
    MOST_CONNECTIONS,
    Recorded,
    TooManyRecordedConnections,
    TrafficJudge,
)
from synrepl.tools.judge.rules import RULES, RuleFinding, RuleSeverity
from synrepl.tools.tap.recording_judge import SYNAPSE_TRAITS
from synrepl.wire.codec import write_line
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.dialects import CURRENT, DIALECTS, LEGACY, MODERN, TRANSITIONAL, Dialect, Side
from tests.wire.recordings import CAPTURES, DIALECT_OF, SIDES, captures, records

#: Known faults by recording: rule -> number of findings.
KNOWN: dict[tuple[str, str], dict[str, int]] = {
    ("1.0.0", "live"): {"unordered": 3},
    ("1.0.0", "worker-pusher1"): {"given-up": 1},
    ("1.11.1", "catchup-fallen-behind"): {"fallen-behind": 1},
    ("1.11.1", "catchup-from0"): {"unordered": 17, "catch-up-order": 12},
    ("1.11.1", "catchup-from1"): {"unordered": 17, "catch-up-order": 12},
    ("1.11.1", "catchup-from40"): {"unordered": 1, "catch-up-order": 9},
    ("1.11.1", "live"): {"unordered": 24},
    ("1.11.1", "live-asked"): {"unordered": 1, "announced-ahead": 4},
    ("1.11.1", "live-forks"): {"unordered": 2},
    ("1.11.1", "live-large"): {"unordered": 59},
    ("1.11.1", "longrow-catchup"): {"unordered": 11, "fallen-behind": 1},
    ("1.11.1", "shutdown"): {"no-goodbye": 1},
    ("1.11.1", "worker-event_creator1"): {"unordered": 23},
    ("1.11.1", "worker-federation_sender1"): {"unordered": 24},
    ("1.11.1", "worker-pusher1"): {"unordered": 23},
    ("1.11.1", "worker-synchrotron1"): {"unordered": 23},
    ("1.163.2", "redis"): {"unordered": 30},
    ("1.20.1", "live"): {"unordered": 4, "to-all": 2},
    ("1.20.1", "live-asked"): {"unordered": 28, "to-all": 102, "announced-ahead": 25},
    ("1.20.1", "worker-pusher1"): {"unordered": 28, "to-all": 3, "given-up": 2},
    ("1.43.0", "live"): {"unordered": 27},
    ("1.43.0", "live-asked"): {
        "unordered": 23,
        "shared-sequence": 11,
        "to-all": 76,
        "announced-ahead": 53,
    },
    ("1.74.0", "redis"): {"unordered": 7, "resumed": 8, "announced-ahead": 2},
    ("1.43.0", "live-forks"): {"unordered": 7, "shared-sequence": 1, "to-all": 4},
    ("1.43.0", "live-large"): {"unordered": 32},
    ("1.43.0", "shutdown"): {"no-goodbye": 1},
    ("1.43.0", "worker-federation_sender1"): {"unordered": 28, "shared-sequence": 1, "to-all": 1},
    ("1.43.0", "worker-federation_sender1-reconnect"): {
        "unordered": 8,
        "to-all": 2,
        "given-up": 2,
    },
    ("1.43.0", "worker-generic1"): {"unordered": 28, "shared-sequence": 1, "to-all": 2},
    ("1.43.0", "worker-generic1-reconnect"): {
        "unordered": 8,
        "shared-sequence": 1,
        "to-all": 5,
        "given-up": 2,
    },
    ("1.43.0", "worker-pusher1"): {"unordered": 28, "shared-sequence": 1, "to-all": 2},
    ("1.43.0", "worker-pusher1-reconnect"): {
        "unordered": 8,
        "shared-sequence": 1,
        "to-all": 6,
        "given-up": 2,
    },
}

REPOSITORY = CAPTURES.parents[2]

Script = list[dict[str, Any]]


def judge(dialect: Dialect, script: Iterable[dict[str, Any]]) -> list[RuleFinding]:
    """The findings about the objects of a recording."""
    traffic = TrafficJudge(dialect, SYNAPSE_TRAITS)
    found: list[RuleFinding] = []
    for number, record in enumerate(script, 1):
        sender = SIDES.get(record.get("dir", "-"))
        line = record["line"].encode("utf-8", "surrogateescape")
        where = record.get("conn"), record.get("channel")
        found += traffic.judge(Recorded(number, record["t"], sender, line, *where))
    return found + list(traffic.end())


def breaches(dialect: Dialect, script: Iterable[dict[str, Any]]) -> list[tuple[str, int]]:
    """Rule and line of each breach."""
    return [
        (rule.name, line)
        for rule, line, _ in judge(dialect, script)
        if rule.severity is RuleSeverity.BREACH
    ]


def line_index(script: Script, *beginnings: str, after: int = 0) -> int:
    """Index of the first line with one of these beginnings."""
    for index, record in enumerate(script):
        if index >= after and record["line"].startswith(beginnings):
            return index
    raise AssertionError(beginnings)


def event_lines(script: Script) -> list[tuple[int, str, int | None]]:
    """Index, command and token of each line of ``events``; the token is None in a batch."""
    found = []
    for at, record in enumerate(script):
        verb, _, rest = record["line"].partition(" ")
        if verb in ("RDATA", "POSITION") and rest.startswith("events "):
            words = rest.partition(" [")[0].split(" ")
            found.append((at, verb, int(words[-1]) if words[-1] != "batch" else None))
    return found


def first_event_below_its_position(script: Script) -> int:
    """Index of the first single-row event that comes after a POSITION at or above it."""
    announced, is_single, count = -1, True, 0
    for at, verb, token in event_lines(script):
        if verb == "POSITION":
            announced = token or 0
        elif token is not None and token <= announced and is_single and count:
            return at
        else:
            count += token is not None
        is_single = token is not None
    raise AssertionError


def record_like(script: Script, at: int, line: str, side: str = "S") -> dict[str, Any]:
    """A record with this line, and the time and connection of the one at ``at``."""
    return {**script[at], "dir": side, "line": line}


def replace_line(script: Script, at: int, line: str) -> None:
    script[at] = {**script[at], "line": line}


class RealServerRecordings(TestCase):
    def test_have_only_known_faults(self) -> None:
        seen = 0
        for version, name in captures():
            with self.subTest(version=version, name=name):
                found = judge(DIALECT_OF[version], records(version, name))
                counted = Counter(finding.rule.name for finding in found)
                self.assertEqual(counted, KNOWN.get((version, name), {}))
                seen += bool(counted)
        self.assertEqual(seen, len(KNOWN))

    def test_a_known_fault_is_reported_with_its_line(self) -> None:
        found = judge(MODERN, records("1.43.0", "live-forks"))
        lines = {(finding.rule.name, finding.line) for finding in found}
        self.assertTrue({("shared-sequence", 238), ("to-all", 225)} <= lines)


class ModifiedRecordings(TestCase):
    """A recording with one modification breaks one rule."""

    def assert_breaks(
        self, version: str, name: str, change: Callable[[Script], int], *rules: str
    ) -> None:
        """``change`` modifies the script and returns the index of the line with the breach."""
        script = list(records(version, name))
        at = change(script)
        found = breaches(DIALECT_OF[version], script)
        self.assertEqual(found, [(rule, at + 1) for rule in rules])

    def test_a_malformed_line_breaks_format(self) -> None:
        def change(script: Script) -> int:
            at = line_index(script, "RDATA")
            replace_line(script, at, "RDATA events master x1 []")
            return at

        self.assert_breaks("1.43.0", "live", change, "format")

    def test_a_greeting_on_redis_breaks_format(self) -> None:
        def change(script: Script) -> int:
            at = line_index(script, "LOCK_RELEASED")
            replace_line(script, at, "PING 1")
            return at

        self.assert_breaks("1.163.2", "redis", change, "format")

    def test_a_server_command_from_the_client_breaks_direction(self) -> None:
        def change(script: Script) -> int:
            script.insert(500, record_like(script, 500, "POSITION events master 1 1", "C"))
            return 500

        self.assert_breaks("1.43.0", "worker-generic1", change, "direction")

    def test_a_line_that_is_too_long_breaks_length(self) -> None:
        def change(script: Script) -> int:
            at = line_index(script, "RDATA presence")
            replace_line(script, at, script[at]["line"].replace("[", "[" + " " * 16_384, 1))
            return at

        self.assert_breaks("1.43.0", "live", change, "length")

    def test_a_truncated_row_breaks_row(self) -> None:
        def change(script: Script) -> int:
            at = line_index(script, "RDATA presence")
            replace_line(script, at, script[at]["line"][:-1])
            return at

        self.assert_breaks("1.11.1", "live", change, "row")

    def test_user_ip_on_the_main_channel_breaks_channel(self) -> None:
        def change(script: Script) -> int:
            at = line_index(script, "USER_IP")
            script[at] = {**script[at], "channel": "localhost:18701"}
            return at

        self.assert_breaks("1.163.2", "redis", change, "channel")

    def test_a_row_on_the_channel_of_another_stream_breaks_channel(self) -> None:
        def other(script: Script) -> int:
            at = line_index(script, "RDATA receipts")
            script[at] = {**script[at], "channel": "localhost:18701/stream/typing"}
            return at

        self.assert_breaks("1.163.2", "redis", other, "channel")

        def own(script: Script) -> int:
            at = line_index(script, "RDATA receipts")
            script[at] = {**script[at], "channel": "localhost:18701/stream/receipts"}
            return at

        self.assert_breaks("1.163.2", "redis", own)

    def test_a_late_or_repeated_greeting_breaks_greeting(self) -> None:
        def first(script: Script) -> int:
            at = line_index(script, "SERVER")
            script[at], script[at + 1] = script[at + 1], script[at]
            return at

        script = list(records("1.43.0", "live"))
        at = first(script)
        self.assertEqual(breaches(MODERN, script), [("greeting", at + 1), ("greeting", at + 2)])

        def again(script: Script) -> int:
            script.insert(100, record_like(script, 99, "SERVER localhost:18501"))
            return 100

        self.assert_breaks("1.11.1", "live", again, "greeting")

    def test_a_line_after_an_error_breaks_last_word(self) -> None:
        def change(script: Script) -> int:
            script.append(record_like(script, -1, "ERROR Failed to keep up"))
            script.append(record_like(script, -1, "PING 1"))
            return len(script) - 1

        self.assert_breaks("1.43.0", "live", change, "last-word")

    def test_a_server_up_sent_back_to_its_sender_breaks_echo(self) -> None:
        def change(script: Script) -> int:
            at = line_index(script, "REMOTE_SERVER_UP")
            script.insert(at, record_like(script, at, script[at]["line"], "C"))
            return at + 1

        self.assert_breaks("1.11.1", "server-up", change, "echo")

    def test_a_repeated_line_on_redis_breaks_echo(self) -> None:
        for verb in ("USER_SYNC", "USER_IP", "NEW_ACTIVE_TASK"):

            def change(script: Script, verb: str = verb) -> int:
                at = line_index(script, verb)
                late = {**script[at], "t": script[at]["t"] + 1_001}
                script.insert(at + 1, {**script[at], "t": script[at]["t"] + 1_000})
                script.insert(at + 2, {**late, "t": late["t"] + 1_000})
                return at + 1

            self.assert_breaks("1.163.2", "redis", change, "echo")

    def test_a_writer_on_redis_that_does_not_answer_breaks_answer(self) -> None:
        def change(script: Script) -> int:
            script[:] = [
                record for record in script if "POSITION events persister1" not in record["line"]
            ]
            asked = script[0]["t"]
            for at, record in enumerate(script):
                speaks = record["line"].startswith("RDATA events persister1 ")
                if speaks and record["t"] > asked + 30_000:
                    return at
            raise AssertionError

        self.assert_breaks("1.163.2", "redis", change, "answer")

    def test_a_writer_need_not_answer_requests_from_before_its_start(self) -> None:
        def change(script: Script) -> int:
            end = script[-1]["t"]
            for late, line in (
                (20_000, "POSITION mine w 1 1"),
                (20_000, "REPLICATE "),
                (40_000, "RDATA mine w 2 []"),
                (40_001, "POSITION mine w 2 2"),
                (80_000, "RDATA mine w 3 []"),
                (90_000, "REPLICATE "),
                (90_001, "POSITION mine v 1 1"),
                (120_001, "RDATA mine w 4 []"),
                (120_002, "RDATA mine w 5 []"),
            ):
                script.append({**script[-1], "t": end + late, "line": line})
            return len(script) - 2

        self.assert_breaks("1.163.2", "redis", change, "answer")

    def test_a_writer_that_reconnects_to_redis_may_skip_rows(self) -> None:
        script = list(records("1.163.2", "redis"))
        last = script[-1]
        at = len(script) + 1
        for line in (
            "REPLICATE ",
            "POSITION receipts writer1 60 60",
            "RDATA receipts writer1 61 []",
        ):
            script.append({**last, "line": line})
        found = [(f.rule.name, f.line) for f in judge(CURRENT, script) if f.line > at - 1]
        self.assertEqual(found, [("resumed", at + 1)])
        self.assertIs(RULES["resumed"].severity, RuleSeverity.KNOWN)

    def test_a_row_repeated_after_a_later_position_breaks_order(self) -> None:
        def change(script: Script) -> int:
            for line in (
                "POSITION receipts writer1 60 60",
                "RDATA receipts writer1 59 []",
                "RDATA receipts writer1 59 []",
            ):
                script.append({**script[-1], "line": line})
            return len(script) - 1

        self.assert_breaks("1.163.2", "redis", change, "order")

    def test_a_request_without_a_position_breaks_answer(self) -> None:
        for version, name in (("1.43.0", "live"), ("1.11.1", "worker-pusher1")):

            def change(script: Script) -> int:
                asked = line_index(script, "REPLICATE")
                stream = script[asked]["line"].partition(" ")[2].partition(" ")[0]
                script[:] = [
                    record
                    for record in script
                    if not record["line"].startswith(f"POSITION {stream}")
                ]
                return asked

            self.assert_breaks(version, name, change, "answer")

    def test_a_row_of_an_unrequested_stream_breaks_unasked(self) -> None:
        def change(script: Script) -> int:
            script.insert(500, record_like(script, 500, 'RDATA typing 1 ["!r:x",[]]'))
            return 500

        self.assert_breaks("1.11.1", "worker-pusher1", change, "unasked")

    def test_silence_of_either_side_breaks_silence(self) -> None:
        for side in "SC":

            def change(script: Script, silent: str = side) -> int:
                first = script[line_index(script, "PING")]["t"]
                script[:] = [
                    record
                    for record in script
                    if record["dir"] != silent or not first + 20_000 < record["t"] < first + 60_000
                ]
                last = [r["t"] for r in script if r["dir"] == silent and r["t"] <= first + 20_000]
                for at, record in enumerate(script):
                    if record["t"] > last[-1] + 15_000:
                        return at
                raise AssertionError

            script = list(records("1.11.1", "worker-federation_sender1"))
            at = change(script)
            found = [line for rule, line in breaches(LEGACY, script) if rule == "silence"]
            self.assertEqual(found, [at + 1])

    def test_a_repeated_row_breaks_order(self) -> None:
        def change(script: Script) -> int:
            at = line_index(script, "RDATA receipts", after=1000)
            script.insert(at + 1, script[at])
            return at + 1

        for version, name in (("1.11.1", "live"), ("1.43.0", "live"), ("1.163.2", "redis")):
            self.assert_breaks(version, name, change, "order")

    def test_a_repeated_row_below_its_position_breaks_order(self) -> None:
        for version in ("1.11.1", "1.20.1", "1.43.0"):

            def change(script: Script) -> int:
                at = first_event_below_its_position(script)
                script.insert(at + 1, script[at])
                return at + 1

            self.assert_breaks(version, "live-asked", change, "order")

    def test_a_decreasing_token_below_its_position_breaks_order(self) -> None:
        for version in ("1.11.1", "1.20.1", "1.43.0"):

            def change(script: Script) -> int:
                at = first_event_below_its_position(script)
                *_, (before, _, _) = [
                    row
                    for row in event_lines(script[:at])
                    if row[1] == "RDATA" and row[2] is not None
                ]
                script.insert(at, record_like(script, at, script[before]["line"]))
                return at

            self.assert_breaks(version, "live-asked", change, "order")

    def test_a_position_below_the_last_one_breaks_backwards(self) -> None:
        def change(script: Script) -> int:
            at = first_event_below_its_position(script)
            _, stream, writer, token, _ = script[at]["line"].split(" ", 4)
            position = f"POSITION {stream} {writer} {int(token) - 1}"
            script.insert(at, record_like(script, at, position))
            return at

        self.assert_breaks("1.20.1", "live-asked", change, "backwards")

    def test_a_wrong_prev_after_rows_below_their_position_breaks_chain(self) -> None:
        def change(script: Script, back: int) -> int:
            at = first_event_below_its_position(script)
            token = int(script[at]["line"].split(" ", 4)[3])
            position = f"POSITION events master {token - back} {token}"
            script.insert(at + 1, record_like(script, at, position))
            return at + 1

        self.assert_breaks("1.43.0", "live-asked", partial(change, back=1), "chain")
        self.assert_breaks("1.43.0", "live-asked", partial(change, back=0))

    def test_prev_is_the_first_or_last_token_of_a_burst_sent_newest_first(self) -> None:
        script = [line_of(MODERN, Position("backfill", "m", 1, 1))]
        for token in (5, 4, 3):
            script.append(line_of(MODERN, Rdata("backfill", "m", token, b"[1]")))
        for prev, expected in ((5, []), (3, []), (4, ["chain"]), (2, ["chain"])):
            end = line_of(MODERN, Position("backfill", "m", prev, 5))
            found = [rule for rule, _ in breaches(MODERN, [*script, end])]
            self.assertEqual(found, expected, prev)

    def test_a_position_may_announce_a_row_too_long_for_a_line(self) -> None:
        long = [Position("events", "m", 1, 1), Position("events", "m", 2, 2)]
        script = [line_of(MODERN, command) for command in long]
        script.append(line_of(MODERN, Position("events", "m", 2, 3)))
        self.assertEqual(breaches(MODERN, script), [])

    def test_a_position_within_a_batch_breaks_batch(self) -> None:
        def change(script: Script) -> int:
            at = line_index(script, "RDATA events master batch")
            sent = [r["line"].split(" ") for r in script[:at] if " events master " in r["line"]]
            last = [words[-1 if words[0] == "POSITION" else 3] for words in sent][-1]
            script.insert(at + 1, record_like(script, at, f"POSITION events master {last} {last}"))
            return at + 1

        self.assert_breaks("1.43.0", "live", change, "batch")

    def test_a_server_that_closes_within_a_batch_breaks_batch(self) -> None:
        def change(script: Script) -> int:
            at = line_index(script, "RDATA events batch")
            script[at + 1 :] = [{**script[at], "dir": "-", "line": "eof"}]
            return at + 1

        self.assert_breaks("1.11.1", "live", change, "batch")

    def test_rows_outside_the_requested_range_break_catch_up(self) -> None:
        def below(script: Script) -> int:
            at = line_index(script, "RDATA account_data")
            replace_line(script, at, 'RDATA account_data 40 ["@u:x",null,"t"]')
            return at

        self.assert_breaks("1.11.1", "catchup-from40", below, "catch-up")

        def above(script: Script) -> int:
            at = line_index(script, "POSITION receipts")
            script.insert(at, record_like(script, at, 'RDATA receipts 999999 ["!r:x","m.read"]'))
            return at + 1

        self.assert_breaks("1.11.1", "catchup-from0", above, "catch-up")

    def test_a_batch_in_a_catch_up_breaks_catch_up_batch(self) -> None:
        def change(script: Script) -> int:
            at = line_index(script, "RDATA events")
            row = script[at]["line"].split(" ", 3)[3]
            replace_line(script, at, f"RDATA events batch {row}")
            return at

        self.assert_breaks("1.11.1", "catchup-from1", change, "catch-up-batch")

    def test_a_wrong_prev_breaks_chain(self) -> None:
        def change(script: Script) -> int:
            at = line_index(script, "RDATA events", after=1000)
            _, stream, writer, token, _ = script[at]["line"].split(" ", 4)
            assert token != "batch"
            position = f"POSITION {stream} {writer} {int(token) - 1} {token}"
            script.insert(at + 1, record_like(script, at, position))
            return at + 1

        self.assert_breaks("1.163.2", "redis", change, "chain")

    def test_a_new_below_its_prev_breaks_reversed(self) -> None:
        def change(script: Script) -> int:
            script.append(record_like(script, -1, "POSITION nobody master 9 8"))
            return len(script) - 1

        self.assert_breaks("1.163.2", "redis", change, "reversed")

    def test_a_position_below_earlier_rows_breaks_backwards(self) -> None:
        def change(script: Script) -> int:
            script.append(record_like(script, -1, "POSITION receipts 1"))
            return len(script) - 1

        self.assert_breaks("1.11.1", "live", change, "backwards")

    def test_an_in_memory_stream_may_restart_at_a_lower_token(self) -> None:
        def change(script: Script) -> int:
            script.append(record_like(script, -1, "POSITION typing master 1 1"))
            script.append(record_like(script, -1, 'RDATA typing master 2 ["!r:x",[]]'))
            return 0

        self.assert_breaks("1.43.0", "live", change)

    def test_every_rule_is_recorded_or_tested(self) -> None:
        known = {name for name, rule in RULES.items() if rule.severity is RuleSeverity.KNOWN}
        recorded = {name for counts in KNOWN.values() for name in counts}
        self.assertEqual(known, recorded)
        tested = inspect.getsource(ModifiedRecordings)
        untested = [name for name in RULES.keys() - recorded if f'"{name}"' not in tested]
        self.assertEqual(untested, [])

    def test_the_docs_list_every_rule(self) -> None:
        text = (REPOSITORY / "docs" / "tap.md").read_text(encoding="utf-8")
        for rule in RULES.values():
            self.assertIn(f"| `{rule.name}` | {rule.severity.value} |", text)
            self.assertIn(f"| {rule.sentence} |", text)

    def test_a_lost_line_on_redis_breaks_chain(self) -> None:
        def change(script: Script) -> int:
            for at, record in enumerate(script):
                match record["line"].split(" ", 4):
                    case ["POSITION", stream, writer, prev, new] if prev != new:
                        lost = line_index(script, f"RDATA {stream} {writer} {prev} ")
                        if lost < at:
                            del script[lost]
                            return at - 1
            raise AssertionError

        self.assert_breaks("1.163.2", "redis", change, "chain")


class GeneratedTraffic(TestCase):
    """Any traffic that keeps the rules has no findings."""

    @given(
        st.sampled_from([TRANSITIONAL, MODERN, CURRENT]),
        st.lists(
            st.tuples(
                st.sampled_from(["events", "receipts", "mine"]),
                st.sampled_from(["w1", "w2"]),
                st.integers(1, 3),  # how far the token goes
                st.integers(0, 3),  # rows; none is a POSITION
            ),
            max_size=30,
        ),
    )
    @settings(max_examples=60, deadline=None)
    def test_facts_and_positions_have_no_findings(
        self, dialect: Dialect, moves: list[tuple[str, str, int, int]]
    ) -> None:
        at: dict[tuple[str, str], int] = {}
        script: Script = []
        for stream, writer, step, rows in moves:
            prev = at.get((stream, writer), 0)
            new = at[stream, writer] = prev + step
            commands: list[Rdata | Position] = [
                Rdata(stream, writer, None, b"[]") for _ in range(rows - 1)
            ]
            if rows:
                commands.append(Rdata(stream, writer, new, b"[1]"))
            else:
                commands.append(Position(stream, writer, prev, new))
            script += [line_of(dialect, command) for command in commands]
        self.assertEqual(judge(dialect, script), [])

    @given(st.data())
    @settings(max_examples=60, deadline=None)
    def test_garbage_never_fails(self, data: st.DataObject) -> None:
        version, name = data.draw(
            st.sampled_from(
                [("1.11.1", "longrow-catchup"), ("1.43.0", "longrow"), ("1.11.1", "server-up")]
            )
        )
        script = list(records(version, name))
        for _ in range(data.draw(st.integers(1, 5))):
            at = data.draw(st.integers(0, len(script) - 1))
            line = data.draw(
                st.one_of(
                    st.text(max_size=20),
                    st.sampled_from([record["line"] for record in script]),
                    st.sampled_from(["RDATA events batch []", "ERROR x", "REPLICATE ALL 1"]),
                )
            ).encode("utf-8", "replace")
            side = data.draw(st.sampled_from("SC-"))
            script.insert(
                at, {**record_like(script, at, line.decode(), side), "t": script[at]["t"]}
            )
        for dialect in DIALECTS.values():
            for finding in judge(dialect, script):
                self.assertTrue(1 <= finding.line <= len(script))
                self.assertIn(dialect.name, finding.rule.dialects)

    def test_refuses_too_many_open_connections(self) -> None:
        one = TrafficJudge(MODERN, SYNAPSE_TRAITS)
        for number in range(MOST_CONNECTIONS):
            list(one.judge(Recorded(1, 0, Side.SERVER, b"PING 1", number)))
            list(one.judge(Recorded(1, 0, None, b"closed", number)))
        for number in range(MOST_CONNECTIONS):
            list(one.judge(Recorded(1, 0, Side.SERVER, b"PING 1", number)))
        with self.assertRaises(TooManyRecordedConnections) as caught:
            list(one.judge(Recorded(1, 0, Side.SERVER, b"PING 1", MOST_CONNECTIONS)))
        self.assertIsInstance(caught.exception, InputError)


def line_of(dialect: Dialect, command: Rdata | Position) -> dict[str, Any]:
    record: dict[str, Any] = {"t": 0, "line": write_line(command, dialect).decode()}
    where = {"dir": "S"} if dialect.has_sides else {"channel": "example.com"}
    return record | where
