"""Streams of whole events, read from synrepl's own database."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from random import Random
from typing import Any
from unittest import TestCase

import msgspec
import psycopg2
from pyspark.sql import types as t

from simulator.rooms.random_rooms import USERS, RandomRoom
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.rooms.tables import EVENTS
from synrepl.pipeline.source.database import sql
from synrepl.pipeline.source.database.landed_states import BASE, FORM_OF_STATE
from synrepl.pipeline.source.database.source_database import NoSuchStream
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.pipeline.source.database.whole_events import (
    CELLS,
    FACT_CELLS,
    common_position,
    positions_of_facts,
)
from synrepl.pipeline.source.plan.chunks import plan_chunks
from synrepl.pipeline.source.reading.chunk_reader import ChunkReader
from synrepl.pipeline.source.reading.quarantine import QuarantinedRow, read_or_quarantine
from synrepl.pipeline.source.reading.schema import arrow_schema, spark_schema
from synrepl.pipeline.source.writer_ranges import WriterRanges
from synrepl.positions.vector import PositionVector
from synrepl.rooms import Event, Room, RoomJudged, event_of, redact
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.rooms.maintenance.erased_form import erased_form
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.tables import ensure_tables
from synrepl.streams.declared import declare
from tests.storage.rooms.store_case import StoreCase

STREAM = "room_events"

#: Of another server than the room's creator.
BOB = USERS[2]


def redacted_form(event: Event) -> str:
    """The JSON of a redacted event."""
    return event_of(redact(event.fields, event.version), event.version).raw.decode()


class WholeEventsCase(StoreCase):
    """A database with a room, and its source."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.source = SynreplDatabase(BlockingDatabase(self.dsn, "tests"))
        self.addCleanup(lambda: self.source.close())
        self.quarantined: list[QuarantinedRow] = []

    async def stored(self, version: str = "10") -> Room:
        """A stored room, as it is in memory: with a redaction that applies and one that does not."""
        made = RandomRoom(Random(8), version, f"whole{version.replace('.', '')}")
        create, joined, levels, rules, entered = made.events
        cites = [create, joined, levels]
        join = {"membership": "join"}
        bob = made.maker.event("m.room.member", join, [entered], [create, levels, rules], BOB, BOB)
        said = made.maker.event("m.room.message", {"body": "secret"}, [bob], cites)
        gone = made.maker.event("m.room.redaction", {}, [said], cites, redacts=said.event_id)
        refused = made.maker.event(
            "m.room.redaction", {}, [gone], [create, levels, bob], BOB, redacts=entered.event_id
        )
        self.secret, self.kept = said.event_id, entered.event_id
        made.events += [bob, said, gone, refused]
        made.more(80)
        room = Room(made.version)
        for event in made.events:
            room.receive(event, live=False)
        await self.one.persist(made.room_id, made.version, made.events)
        self.source.refresh()
        return room

    def rows(
        self,
        stream: str = STREAM,
        columns: Sequence[str] | None = None,
        condition: str = "",
        after: int = 0,
    ) -> list[dict[str, Any]]:
        """All settled rows above a token; what does not fit is quarantined."""
        by_name = {column.name: column for column in self.source.stream_schema(stream).columns}
        names = list(columns or by_name)
        schema = arrow_schema(by_name[name] for name in names)
        end = self.source.observe([stream])[stream].bound
        found: list[dict[str, Any]] = []
        starts, ends = {stream: PositionVector({}, after)}, {stream: end}
        for chunk in plan_chunks(self.source, starts, ends, {stream: names}, 30):
            reader = ChunkReader(self.dsn)
            if condition:
                part = WriterRanges.between(PositionVector(), end).within(chunk.tokens)
                scan = self.source.scan(stream, part, names, condition)
                for batch in reader.batches(msgspec.structs.replace(chunk, scan=scan), schema):
                    found += batch.to_pylist()
                continue
            for batch in read_or_quarantine(reader, chunk, schema, self.quarantined.extend):
                found += batch.to_pylist()
        return found

    def events(self) -> dict[str, dict[str, Any]]:
        """The rows, by event ID."""
        return {row["event_id"]: row for row in self.rows()}


class Rows(WholeEventsCase):
    def assert_row(self, row: dict[str, Any], judged: RoomJudged, create: str) -> None:
        """Check what a redaction does not change of a row."""
        event = judged.event
        self.assertEqual(
            [row[name] for name in ("type", "state_key", "sender", "depth", "origin_server_ts")],
            [event.type, event.state_key, event.sender, event.depth, event.origin_server_ts],
        )
        self.assertEqual(row["rejected"], not judged.accepted)
        self.assertEqual(row["refusal"] is None, judged.accepted)
        self.assertEqual(row["prev_event_ids"], sorted(event.prev_event_ids))
        # Where the room ID is that of the first event, that one is cited by it.
        implied = [create] if event.version.room_id_is_create_hash and not event.is_create else []
        self.assertEqual(row["auth_event_ids"], sorted({*event.auth_event_ids, *implied}))

    async def test_are_the_events_of_facts_with_their_bytes_edges_and_verdicts(self) -> None:
        for version in ("1", "10", "12"):
            room = await self.stored(version)
            rows = {
                each: row for each, row in self.events().items() if row["room_id"] == room.room_id
            }
            self.assertEqual(rows.keys(), {each.event.event_id for each in room})
            create = next(each.event.event_id for each in room if each.event.is_create)
            for judged in room:
                row = rows[judged.event.event_id]
                self.assert_row(row, judged, create)
                self.assertEqual((row["stored"], row["room_version"]), (True, version))
                json = judged.event.raw.decode()
                shown = redacted_form(judged.event) if row["redacted"] else json
                self.assertEqual(row["json"], shown)
            self.assertTrue(any(row["redacted"] for row in rows.values()))
            self.assertTrue(any(row["rejected"] for row in rows.values()))

    async def test_stand_at_the_positions_of_their_facts(self) -> None:
        await self.stored()
        facts = {
            (row["stream_id"], row["row_no"], row["writer"], row["event_id"])
            for row in self.rows("events")
            if row["kind"] == "ev"
        }
        found = [
            (row["stream_id"], row["row_no"], row["writer"], row["event_id"]) for row in self.rows()
        ]
        self.assertEqual(set(found), facts)
        self.assertEqual(len(found), len(facts))
        self.assertEqual(found, sorted(found))
        seen = self.source.observe(["events", STREAM])
        self.assertEqual(seen["events"], seen[STREAM])

    async def test_only_redactions_that_apply_redact(self) -> None:
        await self.stored()
        rows = self.events()
        self.assertTrue(rows[self.secret]["redacted"])
        self.assertNotIn("secret", rows[self.secret]["json"])
        self.assertFalse(rows[self.kept]["redacted"])
        self.assertIn(self.kept, {row["redacts"] for row in rows.values()})

    async def test_of_an_erased_user_come_in_that_form(self) -> None:
        room = await self.stored()
        await RoomMaintenance(self.one.process.database).record_erased([USERS[1]])
        for judged in room:
            if judged.event.sender == USERS[1]:
                row = self.events()[judged.event.event_id]
                self.assertEqual(row["json"], erased_form(judged.event).decode())
        self.assertIn(USERS[1], self.source.erased_subjects())

    async def test_have_the_columns_that_are_asked_for_in_their_order(self) -> None:
        await self.stored()
        whole = self.events()
        for columns in (["json", "stream_id", "event_id"], ["stream_id", "event_id", "redacted"]):
            for row in self.rows(columns=columns):
                self.assertEqual(list(row), columns)
                self.assertEqual(row, {name: whole[row["event_id"]][name] for name in columns})

    async def test_conditions_do_not_see_what_is_redacted(self) -> None:
        await self.stored()
        self.assertEqual(self.rows(columns=["json"], condition="json LIKE '%secret%'"), [])
        self.sql("UPDATE synrepl._room_events SET redacted_by = NULL")
        (row,) = self.rows(columns=["json"], condition="json LIKE '%secret%'")
        self.assertIn("secret", row["json"])

    async def test_of_purged_events_have_the_fact_alone(self) -> None:
        room = await self.stored()
        before = self.events()
        at = sorted(row["stream_id"] for row in before.values())[40]
        maintenance = RoomMaintenance(self.one.process.database)
        await maintenance.purge(room.room_id or "", PurgePoint.of_stream(at), index_check=False)
        after = self.events()
        self.assertEqual(after.keys(), before.keys())
        of_event = [cell.name for cell in CELLS if cell.name not in (*FACT_CELLS, "stored")]
        purged = 0
        stored = {row["stream_id"] for row in after.values() if row["stored"]}
        for event_id, row in after.items():
            old = before[event_id]
            if row["stored"]:
                # What it follows is cut off in the store, and stays what it follows. Another event says its state.
                lost = {} if old[BASE] in stored else dict.fromkeys(FORM_OF_STATE)
                self.assertEqual({**row, **lost}, {**old, **lost})
            else:
                purged += 1
                self.assertLess(row["stream_id"], at)
                nothing = dict.fromkeys(of_event)
                self.assertEqual(row, {**old, **nothing, "stored": False})
        self.assertGreater(purged, 10)

    async def test_of_a_forgotten_room_have_the_fact_alone(self) -> None:
        room = await self.stored()
        # It is renamed first, and its rows go by and by.
        self.sql("UPDATE synrepl._rooms SET room_id = 'forgotten 1 ' || room_id")
        self.assertEqual({row["stored"] for row in self.rows()}, {False})
        self.sql("UPDATE synrepl._rooms SET room_id = %s", room.room_id)
        maintenance = RoomMaintenance(self.one.process.database)
        await maintenance.forget(room.room_id or "", "elsewhere", force=True)
        self.source.refresh()
        self.assertEqual({row["stored"] for row in self.rows()}, {False})

    async def test_history_that_was_fetched_later_counts_down(self) -> None:
        made = RandomRoom(Random(9), "10", "late")
        made.more(20)
        past = [IncomingEvent(each, live=False, backfilled=True) for each in made.events]
        await self.one.persist(made.room_id, made.version, past)
        self.source.refresh()
        self.assertEqual(self.rows(), [])
        rows = self.rows("room_backfill")
        self.assertEqual([row["stream_id"] for row in rows], [-n - 1 for n in range(len(past))])
        self.assertEqual(
            {row["event_id"]: row["json"] is not None for row in rows},
            {each.event_id: True for each in made.events},
        )

    async def test_with_bytes_that_are_no_text_are_quarantined_without_them(self) -> None:
        room = await self.stored()
        broken = next(
            event_id
            for event_id, row in self.events().items()
            if row["type"] == "m.room.message" and not row["redacted"]
        )
        self.sql(
            "UPDATE synrepl._room_event_json SET raw = '\\xff'::bytea WHERE event_no ="
            " (SELECT event_no FROM synrepl._room_events WHERE event_id = %s)",
            broken,
        )
        self.assertEqual(self.events().keys(), {e.event.event_id for e in room} - {broken})
        (row,) = self.quarantined
        self.assertIn(broken, row.cells)
        self.assertIn('"json":null', row.cells)


class TheStream(WholeEventsCase):
    async def test_is_there_only_where_rooms_have_events_and_may_be_read(self) -> None:
        self.assertNotIn(STREAM, self.source.streams)
        self.assertRaises(NoSuchStream, self.source.stream_schema, STREAM)
        await self.stored()
        self.assertEqual(self.source.whole_events, {STREAM, "room_backfill"})
        self.sql(
            "DO $$ BEGIN CREATE ROLE lake_reader LOGIN PASSWORD 'x';"
            " EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        )
        self.sql(
            "GRANT USAGE ON SCHEMA synrepl TO lake_reader;"
            "GRANT SELECT ON synrepl._streams, synrepl.events, synrepl.backfill TO lake_reader"
        )
        dsn = psycopg2.extensions.make_dsn(self.dsn, user="lake_reader", password="x")
        with closing(SynreplDatabase(BlockingDatabase(dsn, "tests"))) as source:
            self.assertIn("events", source.streams)
            self.assertEqual(source.whole_events, frozenset())
            reason = source.unreadable_whole_events[STREAM]
            for right in ("SELECT on synrepl._room_events", "SELECT on synrepl._event_numbers",
                          "EXECUTE on synrepl.state_changes(bytea)"):  # fmt: skip
                self.assertIn(right, reason)

    async def test_says_which_upgrade_is_missing(self) -> None:
        await self.stored()
        self.assertEqual(self.source.unreadable_whole_events, {})
        self.sql("ALTER FUNCTION synrepl.state_changes(bytea) RENAME TO of_a_later_release")
        self.source.refresh()
        self.assertEqual(self.source.whole_events, frozenset())
        reason = self.source.unreadable_whole_events[STREAM]
        self.assertIn("lacks synrepl.state_changes(bytea); run 'synrepl schema'", reason)

    async def test_gives_way_to_a_declared_stream_of_its_name(self) -> None:
        await self.stored()
        declared = declare(STREAM, {"text": "text"})
        await self.database.run("tables", lambda txn: ensure_tables(txn, [declared]))
        self.source.refresh()
        self.assertEqual(self.source.whole_events, {"room_backfill"})
        self.assertEqual([each.name for each in self.source.stream_schema(STREAM).cells], ["text"])

    async def test_is_planned_by_its_facts(self) -> None:
        await self.stored()
        end = self.source.observe([STREAM])[STREAM].bound
        ranges = WriterRanges.between(PositionVector(), end)
        rows = self.rows()
        third, all_of_them = (
            self.source.count_rows({STREAM: ranges}, limit)[STREAM] for limit in (3, len(rows) + 1)
        )
        tokens = sorted(row["stream_id"] for row in rows)
        self.assertEqual((third, all_of_them), ((3, tokens[2]), (len(rows), tokens[-1])))
        occupied = self.source.occupied_range(STREAM, ranges.span)
        self.assertEqual(occupied.upto, max(row["stream_id"] for row in rows))
        self.sql("ANALYZE synrepl.events")
        self.assertAlmostEqual(self.source.estimate_rows(STREAM, ranges), len(rows), delta=20)

    def redacted(
        self, stream: str, since: PositionVector, upto: PositionVector
    ) -> dict[tuple[str, str], int | None]:
        """The redacted events between two positions, each with its time."""
        rows = self.source.redacted_events(stream, since, upto, list)
        found = {(room_id, event_id): at for room_id, event_id, at in rows}
        self.assertEqual(len(found), len(rows))
        return found

    async def test_names_what_was_redacted_between_two_positions(self) -> None:
        room = await self.stored()
        rows = self.events()
        redacted = {
            (room.room_id or "", each): row["origin_server_ts"]
            for each, row in rows.items()
            if row["redacted"]
        }
        end = self.source.observe([STREAM])[STREAM].bound
        self.assertEqual(self.redacted(STREAM, PositionVector(), end), redacted)
        self.assertEqual(self.redacted(STREAM, end, end), {})
        first = min(row["stream_id"] for row in rows.values() if row["redacts"])
        before = PositionVector({}, first - 1)
        self.assertEqual(self.redacted(STREAM, PositionVector(), before), {})
        self.assertEqual(self.redacted("events", PositionVector(), end), {})

    async def test_fetches_redacted_events_as_they_are_taken(self) -> None:
        await self.stored()
        end = self.source.observe([STREAM])[STREAM].bound
        self.sql("UPDATE synrepl._redactions SET applied = true WHERE redacts = %s", self.kept)
        whole = self.redacted(STREAM, PositionVector(), end)
        self.assertGreater(len(whole), 1)
        self.patch(sql, "FETCHED_ROWS", 1)
        self.assertEqual(self.redacted(STREAM, PositionVector(), end), whole)
        first = self.source.redacted_events(
            STREAM, PositionVector(), end, lambda rows: next(iter(rows))
        )
        self.assertIn(first[:2], whole)

    async def test_redactions_count_again_when_a_partial_room_is_complete(self) -> None:
        room = await self.stored()
        end = self.source.observe([STREAM])[STREAM].bound
        self.sql("UPDATE synrepl._redactions SET applied = true WHERE redacts = %s", self.kept)
        rows = f'[{{"kind": "state-all", "room_id": "{room.room_id}"}}]'
        told = self.sql("SELECT synrepl.append('events', %s)", rows)
        later = PositionVector({}, told)
        self.assertEqual(self.redacted(STREAM, end, later), {})
        self.sql("UPDATE synrepl._room_heads SET completed_stream_id = %s", told)
        found = self.redacted(STREAM, end, later)
        self.assertTrue(
            found.keys() >= {(room.room_id or "", each) for each in (self.kept, self.secret)}
        )
        times = {row["event_id"]: row["origin_server_ts"] for row in self.rows()}
        self.assertEqual(found[room.room_id or "", self.kept], times[self.kept])

    async def test_redactions_are_known_whose_facts_were_trimmed(self) -> None:
        await self.stored()
        end = self.source.observe([STREAM])[STREAM].bound
        before = self.redacted(STREAM, PositionVector(), end)
        self.assertTrue(before)
        self.sql("UPDATE synrepl._streams SET trimmed = %s WHERE stream = 'events'", end.linear)
        self.sql("DELETE FROM synrepl.events")
        self.assertEqual(self.redacted(STREAM, PositionVector(), end), before)
        self.assertEqual(self.redacted(STREAM, end, end), {})

    async def test_a_redaction_of_an_event_that_is_gone_counts(self) -> None:
        room = await self.stored()
        end = self.source.observe([STREAM])[STREAM].bound
        target = (room.room_id or "", self.kept)
        self.assertNotIn(target, self.redacted(STREAM, PositionVector(), end))
        self.sql("DELETE FROM synrepl._room_events WHERE event_id = %s", self.kept)
        self.assertIsNone(self.redacted(STREAM, PositionVector(), end)[target])


class Columns(TestCase):
    def test_are_those_of_the_tables_of_rooms(self) -> None:
        theirs = {field.name: field.dataType for field in EVENTS.spark}
        mine = {field.name: field.dataType for field in spark_schema(CELLS)}
        # The bytes of the JSON are UTF-8, and a lake has no bytes.
        self.assertEqual((theirs.pop("json"), mine.pop("json")), (t.BinaryType(), t.StringType()))
        same = theirs.keys() & mine.keys()
        self.assertEqual({name: mine[name] for name in same}, {name: theirs[name] for name in same})
        self.assertEqual(
            theirs.keys() - same, {"stream_ordering", "outlier", "out_of_band", "erased"}
        )


class Positions(TestCase):
    def test_facts_are_needed_until_they_are_read_with_and_without_their_events(self) -> None:
        events = PositionVector({"a": 9, "b": 4}, 3)
        whole = PositionVector({"a": 5}, 4)
        self.assertEqual(
            positions_of_facts(
                {"events": events, "room_events": whole, "x": whole}, {"room_events"}
            ),
            {"events": PositionVector({"a": 5, "b": 4}, 3), "x": whole},
        )
        self.assertEqual(
            positions_of_facts({"room_events": whole}, {"room_events"}), {"events": whole}
        )
        self.assertEqual(
            positions_of_facts({"room_events": whole}, frozenset()), {"room_events": whole}
        )

    def test_what_two_positions_have_in_common_is_covered_by_both(self) -> None:
        one, other = PositionVector({"a": 9}, 2), PositionVector({"b": 7}, 5)
        both = common_position(one, other)
        self.assertTrue(one.covers(both))
        self.assertTrue(other.covers(both))
        self.assertEqual((both["a"], both["b"], both.linear), (5, 2, 2))
