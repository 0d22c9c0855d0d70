"""The jobs ``visibility``, ``divergence`` and ``growth``, with real Spark, over the tables of real Synapses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from random import Random
from statistics import stdev
from typing import Any

import psycopg2
from pyspark.sql import Row
from twisted.trial.unittest import TestCase

from simulator.rooms.random_rooms import USERS, EventMaker, RandomRoom
from synrepl.pipeline.rooms import divergence, growth, visibility
from synrepl.pipeline.rooms.page.result import kinds_page
from synrepl.pipeline.rooms.reading.open import open_rooms
from synrepl.rooms import (
    Event,
    Room,
    StateKey,
    Viewer,
    audience_of,
    membership_after,
    visible_to_user,
)
from system_tests.pipeline.spark_fixture import shared_session
from tests.rooms.test_real_rooms import FORKED, Recorded, replayed
from tests.storage.foreign_rooms import room_database, rooms_of
from tests.storage.rooms.store_case import StoreCase

SERVERS = {"1.163.2": "localhost:18701", "1.43.0": "localhost:18501"}


class StateBefore:
    """The events of a state of a room in memory."""

    def __init__(self, room: Room, state: Any) -> None:
        self._room = room
        self._state = state

    def get(self, key: StateKey) -> Event | None:
        event_id = self._state.get(key)
        return None if event_id is None else self._room[event_id].event


def expected_verdicts(recorded: Recorded, server: str) -> Iterator[tuple[str, int, str, str]]:
    """User, stream ordering, sight and reason by the pure rules, for the users of a server."""
    room = replayed(recorded)
    rows = [row for row in recorded.rows if row["state_group"] is not None]
    users = {
        key
        for row in rows
        for kind, key in recorded.state(row["state_group"])
        if kind == "m.room.member" and key.partition(":")[2] == server
    }
    found = []
    for row in rows:
        judged = room[row["event_id"]]
        before: Any = StateBefore(room, judged.state_before)
        is_soft = bool(row["internal_metadata"].get("soft_failed"))
        audience = audience_of(judged.event, before, soft_failed=is_soft)
        found.append((row, judged, before, audience))
    for user in users:
        memberships = [membership_after(each.event, before, user) for _, each, before, _ in found]
        viewer = Viewer(user, is_peeking="join" not in memberships)
        for (row, _, _, audience), membership in zip(found, memberships, strict=True):
            verdict = visible_to_user(audience, viewer, membership)
            yield user, row["stream_ordering"], verdict.sight.value, verdict.reason.code


class VisibleEvents(TestCase):
    async def test_intervals_are_what_the_rules_say_of_every_event_and_user(self) -> None:
        for version, server in SERVERS.items():
            # The room with the wrong states of KNOWN is another one in memory.
            rooms = [each for each in rooms_of(version) if not each.room_id.startswith(FORKED)]
            dsn = await room_database(version, self, rooms)
            with open_rooms(shared_session(), dsn) as frames:
                intervals = visibility.visible_events(frames, [server]).collect()
            hidden = verdicts = 0
            for recorded in rooms:
                orderings = sorted(
                    row["stream_ordering"]
                    for row in recorded.rows
                    if row["state_group"] is not None
                )
                found = {}
                for row in intervals:
                    if row.room_id == recorded.room_id:
                        within = [
                            each
                            for each in orderings
                            if row.first_ordering <= each <= row.last_ordering
                        ]
                        self.assertEqual(len(within), row.events)
                        for each in within:
                            self.assertNotIn((row.user_id, each), found)
                            found[row.user_id, each] = row.sight, row.reason
                expected = {
                    (user, ordering): (sight, reason)
                    for user, ordering, sight, reason in expected_verdicts(recorded, server)
                }
                differing = {
                    key: (found.get(key), expected.get(key))
                    for key in found.keys() | expected.keys()
                    if found.get(key) != expected.get(key)
                }
                self.assertEqual(differing, {}, (version, recorded.room_id))
                verdicts += len(expected)
                hidden += sum(sight == "hidden" for sight, _ in expected.values())
            self.assertGreater(hidden, 20)
            self.assertGreater(verdicts - hidden, 500)

    async def test_no_server_is_refused(self) -> None:
        dsn = await room_database("1.163.2", self, rooms_of("1.163.2")[:1])
        with (
            open_rooms(shared_session(), dsn) as frames,
            self.assertRaises(visibility.NoServers),
        ):
            visibility.visible_events(frames, [])


class VisibleEventsOfOurStore(StoreCase):
    async def test_intervals_are_what_the_rules_say_of_every_event_and_user(self) -> None:
        expected = {}
        for seed, version in enumerate(("1", "6", "11", "12")):
            made = RandomRoom(Random(seed), version, f"seen{seed}")
            made.more(120)
            expected[made.room_id] = await self.persisted(made.maker, made.events)
        maker, events = room_that_loses_an_entry()
        expected[maker.room_id] = await self.persisted(maker, events)
        with open_rooms(shared_session(), self.dsn) as frames:
            intervals = visibility.visible_events(frames, ["a"]).collect()
            rows = frames.events.where("NOT outlier").collect()
            removals = frames.state_group_entries.where("event_id IS NULL").count()
        self.assertGreater(removals, 0)
        for room_id, verdicts in expected.items():
            found = set()
            for row in intervals:
                if row.room_id != room_id:
                    continue
                within = [
                    each.event_id
                    for each in rows
                    if each.room_id == room_id
                    and row.first_ordering <= each.stream_ordering <= row.last_ordering
                ]
                self.assertEqual(len(within), row.events)
                found.update((row.user_id, each, row.sight, row.reason) for each in within)
            self.assertEqual(found ^ verdicts, set(), room_id)
            self.assertGreater(len({reason for _, _, _, reason in verdicts}), 1)

    async def persisted(
        self, maker: EventMaker, events: Sequence[Event]
    ) -> set[tuple[str, str, str, str]]:
        """Persist a room; what its users on server ``a`` may see by the pure rules."""
        await self.one.persist(maker.room_id, maker.version, events)
        room = Room(maker.version)
        for event in events:
            room.receive(event)
        return set(verdicts_in_memory(room, "a"))


def room_that_loses_an_entry() -> tuple[EventMaker, list[Event]]:
    """A room whose group of a resolved state removes an entry from the group that it is stored over.

    Carol hides the history on a branch, after many other entries. On another one, Alice had taken her power.
    """
    alice, carol = USERS[:2]
    joins = {"membership": "join"}
    maker = EventMaker("11", "loses")
    create = maker.create
    joined = maker.event("m.room.member", joins, [create], [create], key=alice)
    free = {
        "state_default": 0,
        "events": {"m.room.history_visibility": 50},
        "users": {alice: 100, carol: 50},
    }
    levels = maker.event("m.room.power_levels", free, [joined], [create, joined], key="")
    cites = [create, joined, levels]
    public = {"join_rule": "public"}
    rules = maker.event("m.room.join_rules", public, [levels], cites, key="")
    entered = maker.event("m.room.member", joins, [rules], [create, levels, rules], carol, carol)
    events = [create, joined, levels, rules, entered]
    of_carol = [create, levels, entered]
    for number in range(10):
        events.append(maker.event("org.example", {}, events[-1:], of_carol, carol, key=str(number)))
    hidden = {"history_visibility": "joined"}
    visibility_event = maker.event(
        "m.room.history_visibility", hidden, events[-1:], of_carol, carol, key=""
    )
    without = {**free, "users": {alice: 100}}
    demoted = maker.event("m.room.power_levels", without, [entered], cites, key="")
    ends = [visibility_event, demoted]
    after = maker.event("m.room.message", {}, ends, [create, joined, demoted])
    return maker, [*events, *ends, after]


def verdicts_in_memory(room: Room, server: str) -> Iterator[tuple[str, str, str, str]]:
    """User, event, sight and reason for the users of a server that are in a state of a room."""
    found = []
    users = set()
    for judged in room:
        before: Any = StateBefore(room, judged.state_before)
        is_soft = judged.soft_failure is not None
        found.append((judged.event, before, audience_of(judged.event, before, soft_failed=is_soft)))
        users.update(key for kind, key in judged.state_after or () if kind == "m.room.member")
    for user in users:
        if user.partition(":")[2] == server:
            memberships = [membership_after(event, before, user) for event, before, _ in found]
            viewer = Viewer(user, is_peeking="join" not in memberships)
            for (event, _, audience), membership in zip(found, memberships, strict=True):
                verdict = visible_to_user(audience, viewer, membership)
                yield user, event.event_id, verdict.sight.value, verdict.reason.code


class TwoServers(TestCase):
    async def setUp(self) -> None:  # type: ignore[override]
        self.rooms = [each for each in rooms_of("1.163.2") if len(each.rows) > 20][:2]
        self.here = await room_database("1.163.2", self, self.rooms)
        self.there = await room_database("1.163.2", self, self.rooms)

    def differences(self) -> list[Row]:
        with (
            open_rooms(shared_session(), self.here) as here,
            open_rooms(shared_session(), self.there) as there,
        ):
            return divergence.diverging_rooms(here, there).collect()

    def change(self, sql: str, *parameters: object) -> None:
        with closing(psycopg2.connect(self.there)) as connection, connection:
            cursor = connection.cursor()
            cursor.execute("SET session_replication_role = replica")
            cursor.execute(sql, parameters)

    def end(self) -> dict[str, Any]:
        """A state event of the first room that no other follows."""
        followed = {
            prev if isinstance(prev, str) else prev[0]
            for row in self.rooms[0].rows
            for prev in row["event"]["prev_events"]
        }
        return next(row for row in self.rooms[0].rows if row["event_id"] not in followed)

    def test_equal_views_have_no_differences(self) -> None:
        self.assertEqual(self.differences(), [])

    def test_an_event_that_one_server_lacks_is_named(self) -> None:
        end = self.end()
        self.change("DELETE FROM events WHERE event_id = %s", end["event_id"])
        (found,) = self.differences()
        self.assertEqual((found.kind, found.event_id), ("only here", end["event_id"]))
        self.assertEqual((found.here, found.there), ("accepted", None))
        self.here, self.there = self.there, self.here
        (found,) = self.differences()
        self.assertEqual((found.kind, found.there), ("only there", "accepted"))

    def test_a_verdict_that_differs_is_named(self) -> None:
        end = self.end()
        self.change(
            "INSERT INTO rejections (event_id, reason, last_check) VALUES (%s, 'auth_error', '0')",
            end["event_id"],
        )
        (found,) = self.differences()
        self.assertEqual((found.kind, found.event_id), ("verdict", end["event_id"]))
        self.assertEqual((found.here, found.there), ("accepted", "rejected"))

    def test_a_state_that_differs_is_named_where_it_begins(self) -> None:
        rows = [row for row in self.rooms[0].rows if row["state_group"] is not None]
        first = next(
            row
            for row in sorted(rows, key=lambda row: row["topological_ordering"])
            if row["event"]["type"] == "m.room.history_visibility"
        )
        self.change(
            "UPDATE state_groups_state SET event_id = '$other' WHERE state_group = %s"
            " AND type = 'm.room.history_visibility'",
            first["state_group"],
        )
        self.change(
            "UPDATE current_state_events SET event_id = '$other' WHERE room_id = %s"
            " AND type = 'm.room.join_rules'",
            self.rooms[0].room_id,
        )
        found = {row.kind: row for row in self.differences()}
        self.assertEqual(found.keys(), {"state", "current state"})
        self.assertEqual(found["state"].event_id, first["event_id"])
        self.assertEqual(found["current state"].there, "$other")
        self.assertEqual(found["current state"].type, "m.room.join_rules")


class GrowingRooms(TestCase):
    async def test_totals_are_those_of_the_events(self) -> None:
        rooms = rooms_of("1.163.2")
        dsn = await room_database("1.163.2", self, rooms)
        with open_rooms(shared_session(), dsn) as frames:
            rows = growth.room_growth(frames).collect()
        totals = {}
        for row in sorted(rows, key=lambda row: row.day):
            if not row.is_forecast:
                totals[row.measure] = row.total
        events = [
            row["event"]
            for each in rooms
            for row in each.rows
            if not row["outlier"] and row["rejected"] is None
        ]
        last = {
            (each.room_id, row["event"]["state_key"]): row["event"]["content"]["membership"]
            for each in rooms
            for row in sorted(each.rows, key=lambda row: row["stream_ordering"])
            if row["event"]["type"] == "m.room.member"
            and not row["outlier"]
            and row["rejected"] is None
            and not row["internal_metadata"].get("soft_failed")
        }
        joined = sum(membership == "join" for membership in last.values())
        in_states = sum(
            entry.get("membership") == "join"
            for each in rooms
            for entry in each.room["current_state"]
        )
        # A room that all users of the server have left has no current state.
        self.assertLess(abs(joined - in_states), 5)
        self.assertEqual(totals["events"], len(events))
        self.assertEqual(totals["rooms"], sum(each["type"] == "m.room.create" for each in events))
        self.assertEqual(totals["forks"], sum(len(each["prev_events"]) > 1 for each in events))
        self.assertEqual(totals["members"], joined)
        self.assertGreater(totals["event bytes"], 300 * len(events))
        # All on one day, which is not enough to forecast anything.
        self.assertFalse(any(row.is_forecast for row in rows))

    async def test_a_forecast_has_bounds_that_hold_what_came(self) -> None:
        dsn = await room_database("1.163.2", self, rooms_of("1.163.2")[:1])
        days = 40
        with closing(psycopg2.connect(dsn)) as connection, connection:
            cursor = connection.cursor()
            cursor.execute("SET session_replication_role = replica")
            cursor.execute("SELECT room_id FROM rooms")
            cursor.execute(
                "INSERT INTO events (stream_ordering, topological_ordering, event_id, type, room_id,"
                " processed, outlier, depth, origin_server_ts, received_ts, sender, contains_url,"
                " instance_name) SELECT 1000000 + n, n, '$' || n, 'm.room.message', %s, true, false,"
                " n, 1700000000000 + d * 86400000::bigint, 0, '@a:b', false, 'master'"
                " FROM (SELECT d, row_number() OVER () AS n FROM generate_series(0, %s - 1) AS d"
                " CROSS JOIN LATERAL generate_series(1, 20 + d * 4 %% 11)) AS made",
                (cursor.fetchone()[0], days),
            )
            cursor.execute("DELETE FROM events WHERE stream_ordering < 1000000")
        with open_rooms(shared_session(), dsn) as frames:
            rows = [
                row
                for row in growth.room_growth(frames, days_ahead=10).collect()
                if row.measure == "events"
            ]
        known = [row for row in rows if not row.is_forecast]
        ahead = sorted((row for row in rows if row.is_forecast), key=lambda row: row.day)
        self.assertEqual((len(known), len(ahead)), (days, 10))
        added = [20 + day * 4 % 11 for day in range(days)]
        last = max(known, key=lambda row: row.day)
        self.assertEqual(last.total, sum(added))
        self.assertEqual(ahead[0].day, last.day + timedelta(days=1))
        mean = sum(added) / days
        width = 0.0
        for nth, row in enumerate(ahead, 1):
            self.assertAlmostEqual(row.total, last.total + nth * mean)
            coming = sum(20 + day * 4 % 11 for day in range(days, days + nth))
            self.assertLess(row.low, last.total + coming)
            self.assertGreater(row.high, last.total + coming)
            self.assertGreater(row.high - row.low, width)
            width = row.high - row.low
            self.assertGreaterEqual(row.low, last.total)
        # 2.0227 is the quantile for 39 degrees of freedom.
        expected = 2.0227 * stdev(added) * (1 + 1 / days) ** 0.5
        self.assertAlmostEqual(ahead[0].high - ahead[0].total, expected, places=2)


class PagesOfFindings(TestCase):
    """The page of a job that finds differences."""

    def test_findings_of_a_room_and_kind_are_in_the_order_of_their_events(self) -> None:
        found = [(room, kind, f"${n:03}") for room in "ab" for kind in "xy" for n in range(50)]
        mixed = Random(1).sample(found, len(found))
        rows = shared_session().createDataFrame(mixed, "room_id string, kind string, what string")
        html = kinds_page("Differences", rows.repartition(7), "kind", "").html(datetime.now(UTC))
        shown = re.findall(r"<tr><td>(\w)</td><td>(\w)</td><td>(\S+?)</td></tr>", html)
        self.assertEqual(shown, found)
