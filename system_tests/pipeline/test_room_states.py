"""The job ``state-at-every-event``, with real Spark, over synrepl's own tables and those of real Synapses."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from random import Random
from typing import Any

import psycopg2
from pyspark.sql import Row
from twisted.trial.unittest import TestCase

from simulator.rooms.random_rooms import RandomRoom
from synrepl.pipeline.rooms.parts.cutting import cut_rooms
from synrepl.pipeline.rooms.reading.open import open_rooms
from synrepl.pipeline.rooms.state_at_every_event import DIGEST_KEY, state_at_every_event
from synrepl.rooms import Room, RoomJudged, StateKey
from synrepl.storage.rooms.states.state_digest import digest_of
from system_tests.pipeline.spark_fixture import shared_session
from tests.rooms.test_real_rooms import replayed
from tests.storage.foreign_rooms import room_database, rooms_of
from tests.storage.rooms.store_case import StoreCase

#: Rooms are cut wherever they can be.
SMALL = 3


def recorded(version: str) -> list[RoomJudged]:
    """The recorded events of a release that have a state, replayed."""
    return [
        judged
        for each in rooms_of(version)
        for judged, row in zip(by_id(replayed(each), each.rows), each.rows, strict=True)
        if not row["outlier"]
    ]


def by_id(room: Room, rows: Iterable[dict[str, Any]]) -> list[RoomJudged]:
    """The events of recorded rows."""
    return [room[row["event_id"]] for row in rows]


def wrong_rows(events: Iterable[RoomJudged], rows: Iterable[Row]) -> list[str]:
    """The rows that differ from what rooms in memory have, with the states that they describe put together."""
    expected = {judged.event.event_id: judged for judged in events}
    found = {row.event_id: row for row in rows}
    if found.keys() != expected.keys():
        return [f"other events: {sorted(found.keys() ^ expected.keys())}"]
    states: dict[str | None, dict[StateKey, str]] = {None: {}}
    wrong = []
    for row in sorted(rows, key=lambda row: (row.topological_ordering, row.stream_ordering)):
        state = dict(states[row.base_event_id])
        for change in row.changes:
            key = change.type, change.state_key
            if change.event_id is None:
                del state[key]
            else:
                state[key] = change.event_id
        states[row.event_id] = state
        judged = expected[row.event_id]
        assert judged.state_after is not None
        theirs = judged.state_after.as_dict()
        fits = (state, row.size, bytes(row.digest), row.accepted)
        if fits != (theirs, len(theirs), digest_of(DIGEST_KEY, theirs.items()), judged.accepted):
            wrong.append(row.event_id)
    return wrong


def states(dsn: str, size: int) -> list[Row]:
    """The rows of the job."""
    with open_rooms(shared_session(), dsn) as frames:
        return state_at_every_event(frames, size).collect()


class OwnStore(StoreCase):
    async def test_has_the_states_of_rooms_in_memory_wherever_they_are_cut(self) -> None:
        rooms: list[RoomJudged] = []
        for seed, version in enumerate(("1", "6", "10", "12")):
            made = RandomRoom(Random(seed), version, f"room {seed}")
            made.more(60)
            room = Room(made.version)
            for event in made.events:
                room.receive(event, live=False)
            await self.one.persist(made.room_id, made.version, made.events)
            rooms += room
        for size in (1_000, SMALL):
            rows = states(self.dsn, size)
            self.assertEqual(wrong_rows(rooms, rows), [], size)
            self.assertTrue(any(row.resolved for row in rows))
            self.assertTrue(any(row.accepted is False for row in rows))

    async def test_cuts_rooms_only_where_they_have_one_extremity(self) -> None:
        made = RandomRoom(Random(3), "10")
        made.more(80)
        await self.one.persist(made.room_id, made.version, made.events)
        with open_rooms(shared_session(), self.dsn) as frames:
            parts = cut_rooms(shared_session(), frames.parts, frames.parts.rooms(), SMALL)
            place = {
                row.event_id: (row.topological_ordering, row.stream_ordering)
                for row in frames.events.where("NOT outlier").collect()
            }
        self.assertGreater(len(parts), 5)
        self.assertEqual(sum(part.events for part in parts), len(place))
        for part in parts[1:]:
            for event in made.events:
                if place[event.event_id] >= part.first:
                    for parent in event.prev_event_ids:
                        # The last event before the part, or one in it or behind it.
                        between = [at for at in place.values() if place[parent] < at < part.first]
                        self.assertEqual(between, [])


class RecordedSynapses(TestCase):
    timeout = 300

    async def test_has_the_states_that_follow_from_the_events(self) -> None:
        for version in ("1.43.0", "1.163.2"):
            dsn = await room_database(version, None)
            for size in (1_000, SMALL):
                rows = states(dsn, size)
                self.assertEqual(wrong_rows(recorded(version), rows), [], (version, size))

    async def test_judges_parts_again_that_began_in_a_wrong_state(self) -> None:
        # In its rooms no prev event is missing: there, the states of the database are premises.
        version = "1.163.2"
        dsn = await room_database(version, self)
        with (
            closing(psycopg2.connect(dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            # A group loses its entries, and so do those that build on it.
            cursor.execute(
                "DELETE FROM state_groups_state WHERE type = 'm.room.power_levels'"
                " AND state_group % 3 = 0"
            )
            self.assertGreater(cursor.rowcount, 3)
        self.assertEqual(wrong_rows(recorded(version), states(dsn, SMALL)), [])
