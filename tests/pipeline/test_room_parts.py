"""Cutting rooms into parts, and the tasks of ``state-at-every-event`` over databases of real Synapses."""

from __future__ import annotations

from contextlib import closing
from random import Random
from typing import Any
from unittest import TestCase as PlainTestCase

import psycopg2
import pyarrow as pa
from twisted.trial.unittest import TestCase

from synrepl.pipeline.rooms.lookup import LookupSource
from synrepl.pipeline.rooms.parts.cutting import cut_room
from synrepl.pipeline.rooms.parts.source import RoomPart
from synrepl.pipeline.rooms.parts.view import StateCorrection
from synrepl.pipeline.rooms.state_at_every_event import DIGEST_KEY, StateTask, state_rows
from synrepl.pipeline.rooms.tables import ROOM_ORDER
from synrepl.storage.rooms.states.state_digest import digest_of
from tests.pipeline.rooms_in_process import run_in_process
from tests.rooms.test_real_rooms import replayed
from tests.storage.foreign_rooms import room_database, rooms_of


class Cuts(PlainTestCase):
    def test_are_exactly_where_all_later_events_follow_one(self) -> None:
        for seed in range(60):
            rng = Random(seed)
            count = rng.randrange(1, 40)
            width = rng.choice([1, 2, 5])
            parents = [
                rng.sample(range(max(0, at - width), at), rng.randint(1, min(width, at)))
                if at and rng.random() < 0.95
                else []
                for at in range(count)
            ]
            # Stream orderings are in another order than the topological one, and may be negative.
            streams = rng.sample(range(-50, 100), count)
            rows = [
                {
                    "topological_ordering": at,
                    "stream_ordering": streams[at],
                    "prev_stream_ordering": None if parent is None else streams[parent],
                    "has_state_group": True,
                }
                for at, here in enumerate(parents)
                for parent in here or [None]
            ]
            rng.shuffle(rows)
            order = pa.Table.from_pylist(rows, ROOM_ORDER.arrow)
            parts = cut_room(7, order, 1).to_pylist()
            found = [part["topological"] for part in parts[1:]]
            self.assertEqual(
                [part["stream"] for part in parts],
                [streams[part["topological"]] for part in parts],
            )
            wanted = [
                at
                for at in range(1, count)
                if all(parent >= at - 1 for each in range(at, count) for parent in parents[each])
            ]
            self.assertEqual(found, wanted, seed)
            self.assertEqual(sum(part["events"] for part in parts), count)
            self.assertEqual({part["room"] for part in parts}, {7})


class States(TestCase):
    timeout = 300

    def rows(self, dsn: str, task: dict[str, Any], size: int) -> list[dict[str, Any]]:
        def work(lookup: LookupSource, part: RoomPart, table: pa.Table) -> Any:
            return state_rows(StateTask(lookup, **task), part, table)

        return run_in_process(dsn, work, size)

    def check(self, version: str, rows: list[dict[str, Any]]) -> None:
        digests = {row["event_id"]: row["digest"] for row in rows}
        for recorded in rooms_of(version):
            room = replayed(recorded)
            for row in recorded.rows:
                if not row["outlier"]:
                    state = room[row["event_id"]].state_after
                    assert state is not None
                    wanted = digest_of(DIGEST_KEY, state.as_dict().items())
                    self.assertEqual(digests.pop(row["event_id"]), wanted, row["event_id"])
        self.assertEqual(digests, {})

    async def test_are_those_that_follow_from_the_events(self) -> None:
        for version in ("1.43.0", "1.163.2"):
            dsn = await room_database(version, None)
            for size in (1_000, 40):
                rows = self.rows(dsn, {}, size)
                self.check(version, rows)

    async def test_are_right_once_what_parts_found_wrong_is_corrected(self) -> None:
        version = "1.163.2"
        dsn = await room_database(version, self)
        with (
            closing(psycopg2.connect(dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(
                "DELETE FROM state_groups_state WHERE type = 'm.room.power_levels'"
                " AND state_group % 3 = 0"
            )
            self.assertGreater(cursor.rowcount, 3)
        known: dict[str, list[StateCorrection]] = {}
        for _ in range(20):
            rows = self.rows(dsn, {"corrections": known}, 3)
            found = [
                (
                    row["room_id"],
                    StateCorrection(
                        row["topological_ordering"],
                        (at["type"], at["state_key"]),
                        at["stored"],
                        at["computed"],
                    ),
                )
                for row in rows
                for at in row["corrected"] or ()
            ]
            if not found:
                break
            for room_id, correction in found:
                known.setdefault(room_id, []).append(correction)
                known[room_id].sort(key=lambda each: each.topological)
        self.assertGreater(len(known), 0)
        self.check(version, rows)
