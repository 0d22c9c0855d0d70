"""The tables of rooms, read in place from synrepl's own database and from a real Synapse's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from random import Random
from typing import Any

import psycopg2
from twisted.trial.unittest import TestCase

from simulator.rooms.random_rooms import USERS, RandomRoom
from synrepl.driver.held_snapshot import held_snapshot
from synrepl.pipeline.rooms import tables
from synrepl.pipeline.rooms.parts.cutting import packed_parts
from synrepl.pipeline.rooms.reading.own_scans import own_scans
from synrepl.pipeline.rooms.reading.synapse_scans import synapse_scans
from synrepl.pipeline.rooms.tables import ROOM_TABLES, TableColumns
from synrepl.rooms import Event, Room, event_of, parse_event, redact, room_version
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.rooms.maintenance.erased_form import erased_form
from tests.pipeline.rooms_in_process import InProcess
from tests.storage.foreign_rooms import room_database, rooms_of
from tests.storage.rooms.store_case import StoreCase

VERSION = "1.163.2"


def read(
    dsn: str,
    table: TableColumns,
    *,
    is_own: bool = False,
    as_stored: bool = False,
    rooms: Any = None,
) -> list[dict[str, Any]]:
    """The rows of a table."""
    with held_snapshot(dsn, "rooms") as snapshot:
        scans = (own_scans if is_own else synapse_scans)(snapshot.txn, rooms)
        source = InProcess(dsn, snapshot.name, scans, is_own=is_own)
        return source.read(table, as_stored=as_stored).to_pylist()


def part_events(dsn: str, size: int, *, rooms: Any = None) -> list[dict[str, Any]]:
    """The events of all parts of rooms, as tasks that judge them read them."""
    with held_snapshot(dsn, "rooms") as snapshot:
        scans = synapse_scans(snapshot.txn, rooms)
        source = InProcess(dsn, snapshot.name, scans, is_own=False)
        return [
            row
            for parts in packed_parts(source.parts(size), size)
            for _, table in source.source.parts(parts, verified=False)
            for row in table.to_pylist()
        ]


def redacted_form(event: Event) -> bytes:
    """The JSON of a redacted event."""
    return event_of(redact(event.fields, event.version), event.version).raw


class OwnStore(StoreCase):
    async def stored(self) -> Room:
        """A stored room, as it is in memory."""
        made = RandomRoom(Random(8), "10", "told")
        create, joined, levels, _, last = made.events
        cites = [create, joined, levels]
        said = made.maker.event("m.room.message", {"body": "secret"}, [last], cites)
        gone = made.maker.event("m.room.redaction", {}, [said], cites, redacts=said.event_id)
        made.events += [said, gone]
        made.more(80)
        room = Room(made.version)
        for event in made.events:
            room.receive(event, live=False)
        await self.one.persist(made.room_id, made.version, made.events)
        return room

    def rows(self, table: TableColumns, *, as_stored: bool = False) -> list[dict[str, Any]]:
        return read(self.dsn, table, is_own=True, as_stored=as_stored)

    async def test_tables_have_what_the_room_has(self) -> None:
        room = await self.stored()
        events = {row["event_id"]: row for row in self.rows(tables.EVENTS)}
        self.assertEqual(events.keys(), {each.event.event_id for each in room})
        for each in room:
            event, row = each.event, events[each.event.event_id]
            self.assertEqual(
                (row["type"], row["state_key"], row["sender"], row["depth"], row["rejected"]),
                (event.type, event.state_key, event.sender, event.depth, not each.accepted),
            )
        for table, column, wanted in (
            (tables.EDGES, "prev_event_id", lambda event: event.prev_event_ids),
            (tables.AUTH_EDGES, "auth_event_id", lambda event: event.auth_event_ids),
        ):
            self.assertEqual(
                {(row["event_id"], row[column]) for row in self.rows(table)},
                {(each.event.event_id, other) for each in room for other in wanted(each.event)},
            )
        current = {
            (row["type"], row["state_key"]): row["event_id"]
            for row in self.rows(tables.CURRENT_STATE)
        }
        self.assertEqual(current, room.current_state().as_dict())
        self.assertEqual(
            {row["event_id"] for row in self.rows(tables.FORWARD_EXTREMITIES)},
            room.forward_extremities,
        )

    async def test_groups_put_together_are_the_states(self) -> None:
        room = await self.stored()
        prevs = {
            row["state_group"]: row["prev_state_group"] for row in self.rows(tables.STATE_GROUPS)
        }
        entries: dict[int, dict[tuple[str, str], str | None]] = {}
        for row in self.rows(tables.STATE_GROUP_ENTRIES):
            key = row["type"], row["state_key"]
            entries.setdefault(row["state_group"], {})[key] = row["event_id"]

        def state(group: int) -> Mapping[tuple[str, str], str | None]:
            prev = prevs[group]
            found = {**(state(prev) if prev is not None else {}), **entries.get(group, {})}
            return {key: event_id for key, event_id in found.items() if event_id is not None}

        rows = self.rows(tables.EVENT_STATE_GROUPS)
        self.assertEqual(len(rows), len(room))
        for row in rows:
            judged = room[row["event_id"]]
            assert judged.state_after is not None
            assert judged.state_before is not None
            self.assertEqual(state(row["state_group"]), judged.state_after.as_dict())
            self.assertEqual(state(row["state_group_before"]), judged.state_before.as_dict())

    async def test_what_was_redacted_or_erased_comes_in_that_form(self) -> None:
        await self.stored()
        erased = USERS[1]
        before = {row["event_id"]: row["json"] for row in self.rows(tables.EVENTS, as_stored=True)}
        await RoomMaintenance(self.one.process.database).erase_user(erased)
        redacted = 0
        for row in self.rows(tables.EVENTS):
            event = parse_event(before[row["event_id"]], room_version("10"))
            if row["sender"] == erased:
                self.assertEqual((row["erased"], row["json"]), (True, erased_form(event)))
            elif row["redacted"]:
                redacted += 1
                self.assertEqual(row["json"], redacted_form(event))
            else:
                self.assertEqual(row["json"], event.raw)
        self.assertGreater(redacted, 0)


class RealSynapse(TestCase):
    timeout = 300

    async def test_every_table_can_be_read_of_every_release(self) -> None:
        for version in ("1.11.1", "1.43.0", "1.163.2"):
            dsn = await room_database(version, None)
            found = {table.name: len(read(dsn, table)) for table in ROOM_TABLES}
            rooms = rooms_of(version)
            self.assertEqual(found["events"], sum(len(room.rows) for room in rooms))
            self.assertEqual(found["rooms"], len(rooms))
            self.assertEqual(found["audiences"], 0)
            self.assertGreater(
                min(found[name] for name in found.keys() - {"audiences", "backward_extremities"}), 0
            )

    async def test_reads_some_rooms_only(self) -> None:
        dsn = await room_database(VERSION, None)
        first, *_ = rooms_of(VERSION)
        for table in ROOM_TABLES:
            whole = [row for row in read(dsn, table) if row["room_id"] == first.room_id]
            some = read(dsn, table, rooms=[first.room_id, "!unknown:x"])
            self.assertCountEqual(map(str, some), map(str, whole), table.name)

    async def test_a_room_id_is_no_part_of_a_statement(self) -> None:
        first, *_ = rooms_of(VERSION)
        dsn = await room_database(VERSION, self, [first])
        odd = "!{part}'{further}:x"
        with (
            closing(psycopg2.connect(dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SET session_replication_role = replica")
            cursor.execute("UPDATE events SET room_id = %s", (odd,))
            cursor.execute("DELETE FROM rooms")
        for rooms in (None, [odd]):
            found = {row["room_id"] for row in read(dsn, tables.EVENTS, rooms=rooms)}
            self.assertEqual(found, {odd}, rooms)
            rows = part_events(dsn, 5, rooms=rooms)
            self.assertEqual({row["room_id"] for row in rows}, {odd}, rooms)
            self.assertEqual(len(rows), sum(not row["outlier"] for row in first.rows))

    async def test_parts_of_some_rooms_have_each_of_their_events_once(self) -> None:
        dsn = await room_database(VERSION, None)
        first, second, *_ = rooms_of(VERSION)
        for size in (1_000, 5):
            rows = part_events(dsn, size, rooms=[first.room_id, second.room_id, "!unknown:x"])
            wanted = {
                row["event_id"]
                for room in (first, second)
                for row in room.rows
                if not row["outlier"]
            }
            self.assertEqual(sorted(row["event_id"] for row in rows), sorted(wanted), size)
            events = {row["event_id"]: row for row in read(dsn, tables.EVENTS, as_stored=True)}
            for row in rows:
                stored = events[row["event_id"]]
                self.assertEqual(row, {name: stored[name] for name in row}, size)

    async def test_redactions_that_apply_are_honoured(self) -> None:
        dsn = await room_database(VERSION, self)
        with (
            closing(psycopg2.connect(dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SET session_replication_role = replica")
            cursor.execute(
                "SELECT e.event_id, e.room_id, e.sender FROM events e WHERE type = 'm.room.message'"
                " AND NOT outlier AND NOT EXISTS (SELECT FROM redactions d WHERE d.redacts = e.event_id)"
                " ORDER BY stream_ordering LIMIT 4"
            )
            targets = cursor.fetchall()
            other_server, metadata = "@x:elsewhere", '{"recheck_redaction":true}'
            cases = (
                (0, targets[0][2], metadata, False),  # of the same server
                (1, other_server, metadata, False),
                (2, other_server, "{}", False),  # whose power was checked when it came
                (3, targets[3][2], metadata, True),  # rejected
            )
            for at, sender, flags, rejected in cases:
                event_id, room_id, _ = targets[at]
                cursor.execute(
                    "INSERT INTO events (topological_ordering, event_id, type, room_id, processed, outlier,"
                    " depth, origin_server_ts, sender, stream_ordering)"
                    " VALUES (1, %s, 'm.room.redaction', %s, true, false, 1, 1, %s, %s)",
                    (f"$r{at}", room_id, sender, 900_000 + at),
                )
                cursor.execute(
                    "INSERT INTO event_json (event_id, room_id, internal_metadata, json, format_version)"
                    " VALUES (%s, %s, %s, '{}', 3)",
                    (f"$r{at}", room_id, flags),
                )
                cursor.execute(
                    "INSERT INTO redactions (event_id, redacts) VALUES (%s, %s)",
                    (f"$r{at}", event_id),
                )
                if rejected:
                    cursor.execute("INSERT INTO rejections VALUES (%s, 'x', '')", (f"$r{at}",))
            cursor.execute("INSERT INTO erased_users VALUES ('@nobody:x')")
        stored = {row["event_id"]: row for row in read(dsn, tables.EVENTS, as_stored=True)}
        shown = {row["event_id"]: row for row in read(dsn, tables.EVENTS)}
        for at, (event_id, _, _) in enumerate(targets):
            event = parse_event(
                stored[event_id]["json"], room_version(stored[event_id]["room_version"])
            )
            applies = at in (0, 2)
            self.assertEqual(shown[event_id]["redacted"], applies, at)
            wanted = redacted_form(event) if applies else event.raw
            self.assertEqual(shown[event_id]["json"], wanted, at)
