"""What is compared of a server and of ours beside it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from unittest import TestCase

import psycopg2
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial import unittest as trial

from interop import polling
from interop.environments import Environment
from interop.observer import QuietSnapshot
from interop.redis_wire import RedisWire
from interop.releases import CURRENT
from interop.report import answers_table, difference
from interop.synapse import ServerDirectory
from interop.synapse_over_redis import EightProcesses
from interop.synapse_tables import OpenTransaction, SynapseTables
from interop.synrepl_watch import Diagnosis, WatchSample
from synrepl.testing.postgres import fresh_database
from synrepl.testing.redis import RedisTestServer

KEY = ("events", "w")


def look(
    heard: int | None = 7, committed: int | None = 6, rows: int = 3, **more: Any
) -> WatchSample:
    stream = {"stream": "events", "writer": "w", "heard": heard, "committed": committed}
    section = {
        "connected": True,
        "trouble": [],
        "alarms": [],
        "streams": [{**stream, "rows": rows}],
    }
    return WatchSample({**section, **more})


def quiet_snapshot(
    seen: WatchSample, announced: int = 7, rows: int = 3, recorded: int = 6
) -> QuietSnapshot:
    return QuietSnapshot({KEY: announced}, Counter({KEY: rows}), {KEY: recorded}, seen)


class QuietSnapshots(TestCase):
    """The wire, the database and the watch at one moment."""

    def test_nothing_is_wrong_where_all_agree(self) -> None:
        self.assertEqual(quiet_snapshot(look()).wrong, [])
        self.assertEqual(quiet_snapshot(look()).behind, [])

    def test_wrong_figures_of_watch_are_reported(self) -> None:
        for seen, section in (
            (look(heard=8), ["events of w heard at 8, announced 7"]),
            (look(heard=None), ["events of w heard at None, announced 7"]),
            (look(committed=5), ["events of w committed at 5, recorded 6"]),
            (look(committed=None), ["events of w committed at None, recorded 6"]),
            (look(alarms=["a"]), ["a"]),
            (look(trouble=["t"]), ["t"]),
        ):
            self.assertEqual(quiet_snapshot(seen).wrong, section)

    def test_invented_figures_of_watch_are_reported(self) -> None:
        more = {"stream": "x", "writer": "w", "heard": 1, "committed": None, "rows": 0}
        seen = look(streams=[*look().report["streams"], more])
        self.assertEqual(quiet_snapshot(seen).wrong, ["x of w heard at 1, announced None"])

    def test_unannounced_positions_are_reported(self) -> None:
        section = quiet_snapshot(look(heard=5), announced=5).behind
        self.assertEqual(section, ["events of w announced 5, recorded 6"])

    def test_rows_are_counted_since_a_snapshot(self) -> None:
        before = quiet_snapshot(look(rows=2), rows=1)
        self.assertEqual(quiet_snapshot(look(rows=4), rows=3).miscounted(before), [])
        section = quiet_snapshot(look(rows=4), rows=4).miscounted(before)
        self.assertEqual(section, ["events of w 2 rows instead of 3"])

    def test_a_sample_is_good_without_trouble_and_alarms(self) -> None:
        self.assertTrue(look().well)
        for more in ({"connected": False}, {"trouble": ["t"]}, {"alarms": ["a"]}):
            self.assertFalse(look(**more).well)


FOUND = {
    "id": "idle-transaction",
    "where": "backend 12",
    "what": "an open transaction: backend 12 (writer1), idle",
}


class Diagnoses(TestCase):
    """A diagnosis of the doctor."""

    def test_names_the_backend_and_its_process(self) -> None:
        diagnosis = Diagnosis(1, [FOUND])
        self.assertTrue(diagnosis.names(12, "writer1"))
        self.assertFalse(diagnosis.names(1, "writer1"))
        self.assertFalse(diagnosis.names(12, "writer"))
        self.assertEqual(str(diagnosis), "status 1, idle-transaction (backend 12)")


class RequestRouting(TestCase):
    """Which process answers a request."""

    def setUp(self) -> None:
        server_directory = ServerDirectory(
            Environment(CURRENT, Path("nowhere")), Path("nowhere"), "a.example", {}
        )
        self.eight = EightProcesses(server_directory, 1)

    def ports(self, path: str) -> set[int]:
        return {self.eight.port(f"/_matrix/client/r0{path}") for _ in range(6)}

    def test_goes_by_path_and_round_robin(self) -> None:
        (main,) = self.ports("/createRoom")
        (typing,) = self.ports("/rooms/!r:a.example/typing/@u:a.example")
        receipts = self.ports("/rooms/!r:a.example/receipt/m.read/$e")
        senders = self.ports("/rooms/!r:a.example/send/m.room.message/1")
        (sync,) = self.ports("/sync?timeout=0")
        self.assertEqual((len(receipts), len(senders)), (2, 3))
        self.assertIn(typing, receipts)
        self.assertIn(sync, senders)
        self.assertEqual(len({main, *receipts, *senders}), 6)


class SynapseTablesTests(trial.TestCase):
    """Real PostgreSQL, with what a Synapse would have there."""

    async def setUp(self) -> None:  # type: ignore[override]
        dsn = await fresh_database(self)
        self.other = psycopg2.connect(dsn, application_name="writer1")
        self.addCleanup(self.other.close)
        self.cursor = self.other.cursor()
        self.cursor.execute(
            "CREATE TABLE stream_positions (stream_name text, instance_name text, stream_id int);"
            "INSERT INTO stream_positions VALUES ('events', 'a', 5), ('backfill', 'a', -2),"
            " ('presence_stream', 'b', 3)"
        )
        self.other.commit()
        self.tables = SynapseTables(dsn)
        self.addCleanup(self.tables.__exit__, None, None, None)

    def test_reads_recorded_positions(self) -> None:
        expected = {("events", "a"): 5, ("backfill", "a"): 2, ("presence", "b"): 3}
        self.assertEqual(self.tables.positions(), expected)

    def test_finds_open_writes_and_the_oldest_transaction(self) -> None:
        self.assertIsNone(self.tables.oldest())
        self.cursor.execute("SELECT 1")
        mine = OpenTransaction(self.other.info.backend_pid, "writer1")
        self.assertEqual(self.tables.oldest(), mine)
        self.assertEqual(self.tables.open_writes("writer1"), [])
        self.cursor.execute("DELETE FROM stream_positions")
        self.assertEqual(self.tables.open_writes("writer1"), [mine])
        self.assertEqual(self.tables.open_writes("writer2"), [])


class RedisWireTests(TestCase):
    """A real Redis."""

    def setUp(self) -> None:
        self.redis = RedisTestServer()
        self.addCleanup(self.redis.close)

    @settings(max_examples=20, deadline=None)
    @given(
        st.lists(
            st.tuples(st.sampled_from(["events", "caches"]), st.sampled_from("ab"), st.integers(0)),
            max_size=20,
        )
    )
    def test_keeps_the_highest_row_unless_a_position_overrides_it(
        self, said: list[tuple[str, str, int]]
    ) -> None:
        with RedisWire(self.redis.port, "a.example") as wire:
            polling.wait_until("a subscriber", lambda: self.publish("POSITION x y 0 1"))
            for stream, writer, token in said:
                self.publish(f"RDATA {stream} {writer} batch [1, 2]")
                self.publish(f'RDATA {stream} {writer} {token} ["a b"]')
            self.publish("LOCK_RELEASED [1]")
            self.publish("POSITION events a 9 4")
            self.publish("POSITION end y 0 1")
            polling.wait_until("all of it", lambda: ("end", "y") in wire.announced())
            announced, rows = wire.announced(), wire.rows()
        furthest: dict[tuple[str, str], int] = {}
        for stream, writer, token in said:
            furthest[stream, writer] = max(token, furthest.get((stream, writer), 0))
        expected = {**furthest, ("events", "a"): 4, ("x", "y"): 1, ("end", "y"): 1}
        self.assertEqual(announced, expected)
        self.assertEqual(rows, Counter([(s, w) for s, w, _ in said] * 2))

    def publish(self, line: str) -> bool:
        """Say it; True when somebody heard it."""
        return self.redis.command("PUBLISH", "a.example", line) == 1


class Output(TestCase):
    """For the report."""

    def test_describes_how_two_counts_differ(self) -> None:
        self.assertEqual(difference({"a": 1, "b": 2}, {"b": 2, "a": 1}), "")
        section = difference({"a": 1, "b": 2}, {"b": 3, "c": 1})
        self.assertEqual(section, "a 0 instead of 1, b 3 instead of 2, c 1 instead of 0")

    def test_counts_answers_by_request_and_status(self) -> None:
        table = answers_table({("join", 403): 1, ("join", 200): 5, ("a", 200): 2})
        self.assertEqual(table.rows, [("a", "2 x 200"), ("join", "5 x 200, 1 x 403")])
