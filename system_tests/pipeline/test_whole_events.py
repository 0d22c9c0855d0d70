"""Whole events in a lake: landed with Spark, redacted, erased, purged, and compared with the database."""

from __future__ import annotations

from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq

from simulator.rooms.random_rooms import USERS, RandomRoom
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.datasource import register
from synrepl.pipeline.lake import maintenance
from synrepl.pipeline.lake.check.check import Extent, check
from synrepl.pipeline.lake.check.report import StreamReport
from synrepl.pipeline.lake.check.revised_events import Revisions, revisable_parts
from synrepl.pipeline.lake.erase import redacted_events
from synrepl.pipeline.lake.erase.erase import ErasureReport, erase
from synrepl.pipeline.lake.erase.erasures import Erasures
from synrepl.pipeline.lake.erase.mask import mask
from synrepl.pipeline.lake.erase.pending import PendingErasures, pending
from synrepl.pipeline.lake.erase.redacted_events import AppliedRedactions
from synrepl.pipeline.lake.erase.redaction_index import redaction_folder
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land.landing import Landing, Vectors
from synrepl.pipeline.lake.maintenance import LakeMaintenance, MaintenanceReport
from synrepl.pipeline.lake.repair import find_damaged, repair
from synrepl.pipeline.lake.replay.replay import RoomsNotReplayed, replay_ranges
from synrepl.pipeline.lake.table_log import LakeFailed
from synrepl.pipeline.rooms.states_in_lake import states_in_lake
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.pipeline.source.database.whole_events import RedactedRow, positions_of_facts
from synrepl.positions.vector import PositionVector
from synrepl.rooms import Event, StateKey, event_of, redact
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from synrepl.storage.rooms.states.state_groups import read_states
from synrepl.storage.rooms.tables.numbers import room_by_number
from system_tests.pipeline.spark_fixture import shared_session
from system_tests.pipeline.test_erase import holding
from tests.storage.rooms.store_case import StoreCase

STREAM = "room_events"


SECRET = "what nobody should read"


class WholeEventsInALake(StoreCase):
    timeout = 600

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.spark = shared_session()
        self.made = RandomRoom(Random(5), "10", "landed")
        self.made.more(60)
        await self.persist(*self.made.events)
        self.source = SynreplDatabase(BlockingDatabase(self.dsn, "tests"))
        self.addCleanup(self.source.close)
        self.lake = Lake.open_or_create(Path(self.mktemp()), self.source.server, False)
        self.maintenance = LakeMaintenance(self.spark, self.lake, self.source, self.dsn)
        self.directory = Path(self.mktemp())
        self.rooms = RoomMaintenance(self.one.process.database)

    async def persist(self, *events: Event) -> None:
        await self.one.persist(self.made.room_id, self.made.version, events)

    async def say(self, body: str) -> Event:
        """A new message of the room's creator."""
        create, joined, levels, *_ = self.made.events
        cites = [create, joined, levels]
        said = self.made.maker.event("m.room.message", {"body": body}, [levels], cites)
        await self.persist(said)
        return said

    async def redact(self, event: Event, sender: str = USERS[0]) -> Event:
        create, joined, levels, *_ = self.made.events
        cites = [create, joined, levels]
        gone = self.made.maker.event(
            "m.room.redaction", {}, [event], cites, sender, redacts=event.event_id
        )
        await self.persist(gone)
        return gone

    def land(self) -> MaintenanceReport:
        """Land, erase and compact."""
        with self.lake.write_lock():
            return self.maintenance.run(self.source.streams, settle_timeout_s=0)

    def checked(self, stream: str = STREAM) -> StreamReport:
        """Compare a stream as ``synrepl lake check`` does."""
        with self.lake.write_lock():
            known = pending(self.spark, self.source, self.lake).known
            extent = Extent(streams=[stream], range_rows=40)
            masking = partial(mask, erasures=known)
            report = check(self.spark, self.lake, self.source, self.dsn, extent, mask=masking)
        return report.streams[0]

    def assert_equal(self, **counts: int) -> None:
        """Check that nothing differs, and what is counted."""
        report = self.checked()
        self.assertEqual(report.problems, [])
        self.assertTrue(report.equal)
        self.assertEqual(
            {"gone": report.gone, "revised": report.revised}, {"gone": 0, "revised": 0} | counts
        )
        self.assertEqual(report.source_rows, report.lake_rows)

    def rows(self) -> dict[str, dict[str, Any]]:
        """The rows in the lake, by event ID; those without are under their stream IDs."""
        table = self.lake.table(STREAM)
        found = [
            row for file in table.files for row in pq.read_table(table.path_of(file)).to_pylist()
        ]
        rows = {row["event_id"] or str(row["stream_id"]): row for row in found}
        self.assertEqual(len(rows), len(found))
        return rows

    def damage(self, change: Any) -> None:
        """Rewrite the first file with changed rows."""
        table = self.lake.table(STREAM)
        file = table.files[0]
        before = pq.read_table(table.path_of(file))
        rows = before.to_pylist()
        change(rows)
        name = f"damaged-{uuid4()}.parquet"
        after = before.from_pylist(rows, before.schema)
        pq.write_table(after, table.path / name)
        size = (table.path / name).stat().st_size
        table.rewrite(
            [file], [file.__class__(name, size, file.rows, file.low, file.high)], change=True
        )

    async def test_lands_them_and_what_comes_later(self) -> None:
        report = self.land()
        events = {each.event_id: each for each in self.made.events}
        self.assertEqual(report.rows[STREAM], len(events))
        self.assertEqual(report.upto[STREAM], report.upto["events"])
        rows = self.rows()
        self.assertEqual(rows.keys(), events.keys())
        for event_id, row in rows.items():
            if not row["redacted"]:
                self.assertEqual(row["json"], events[event_id].raw.decode())
        self.assert_equal()
        said = await self.say("news")
        self.assertEqual(self.land().rows[STREAM], 1)
        self.assertEqual(self.rows()[said.event_id]["json"], said.raw.decode())
        self.assert_equal()

    async def test_redacts_what_was_landed_before_its_redaction(self) -> None:
        said, kept = await self.say(SECRET), await self.say("stays")
        self.land()
        self.assertTrue(holding(self.lake, SECRET))
        await self.redact(said)
        report = self.checked()
        self.assertEqual((report.problems, report.revised), ([], 1))
        done = self.land()
        self.assertEqual(done.erased.redactions, 1)
        self.assertEqual(holding(self.lake, SECRET), [])
        row = self.rows()[said.event_id]
        form = event_of(redact(said.fields, said.version), said.version).raw.decode()
        self.assertEqual((row["redacted"], row["json"]), (True, form))
        self.assertEqual(self.rows()[kept.event_id]["json"], kept.raw.decode())
        self.assert_equal()
        self.assertEqual(self.land().erased.redactions, 0)

    async def test_a_redaction_is_looked_for_where_its_event_is(self) -> None:
        said = [await self.say(SECRET)]
        landing = Landing(self.spark, self.lake, self.source, self.dsn)
        with self.lake.write_lock():
            for body in ("two", "three", ""):
                [*landing.rounds([STREAM])]
                said.append(await (self.say(body) if body else self.redact(said[0])))
            [*landing.rounds([STREAM])]
            searched: list[tuple[int, int]] = []
            found = pending(self.spark, self.source, self.lake)
            report = erase(
                self.spark, self.lake, found, lambda done, of: searched.append((done, of))
            )
        self.assertEqual(len(self.lake.table(STREAM).files), 4)
        self.assertEqual((report.files, report.rows, searched[-1]), (1, 1, (1, 1)))
        self.assertEqual(holding(self.lake, SECRET), [])

    async def test_redacts_every_copy_of_an_event_that_came_again(self) -> None:
        said = await self.say(SECRET)
        self.land()
        await self.rooms.forget(self.made.room_id, "elsewhere", force=True)
        await self.persist(*self.made.events, said)
        self.land()
        self.assertEqual(len(holding(self.lake, SECRET)), 2)
        await self.redact(said)
        self.land()
        self.assertEqual(holding(self.lake, SECRET), [])

    async def test_redactions_count_of_a_stream_that_is_not_in_the_lake(self) -> None:
        said = await self.say(SECRET)
        with self.lake.write_lock():
            self.maintenance.run([STREAM], settle_timeout_s=0)
        self.assertTrue(holding(self.lake, SECRET))
        # One that came as history.
        rows = (
            f'[{{"room_id": "{self.made.room_id}", "event_id": "$later",'
            f' "type": "m.room.redaction", "redacts": "{said.event_id}"}}]'
        )
        self.sql("SELECT synrepl.append('backfill', %s)", rows)
        self.sql(
            "UPDATE synrepl._room_events SET redacted_by = 1 WHERE event_id = %s", said.event_id
        )
        with self.lake.write_lock():
            self.maintenance.run([STREAM], settle_timeout_s=0)
        self.assertEqual(holding(self.lake, SECRET), [])

    async def test_never_writes_what_is_redacted_before_it_lands(self) -> None:
        said = await self.say(SECRET)
        await self.redact(said)
        with self.lake.write_lock():
            landing = Landing(self.spark, self.lake, self.source, self.dsn)
            (*_, landed) = landing.rounds(self.source.streams)
        self.assertGreater(landed.rows[STREAM], 0)
        self.assertEqual(holding(self.lake, SECRET), [])

    async def test_the_first_landing_is_not_searched_for_earlier_redactions(self) -> None:
        await self.redact(await self.say(SECRET))
        said = await self.say("stays for now")
        found: list[list[RedactedRow]] = []
        real = self.source.redacted_events

        def noted(stream: str, since: PositionVector, upto: PositionVector, collect: Any) -> Any:
            found.append(real(stream, since, upto, list))
            return real(stream, since, upto, collect)

        self.patch(self.source, "redacted_events", noted)
        searched: list[Erasures] = []

        def erased(spark: Any, lake: Lake, todo: PendingErasures) -> ErasureReport:
            searched.append(todo.new)
            return erase(spark, lake, todo)

        self.patch(maintenance, "erase", erased)
        self.assertEqual(self.land().erased.files, 0)
        self.assertEqual([len(each.applied) for each in searched], [0])
        self.assertEqual(found, [[]] * len(found))
        await self.redact(said)
        self.assertEqual(self.land().erased.redactions, 1)
        self.assertEqual(holding(self.lake, "stays for now"), [])

    async def test_a_redaction_counts_that_is_trimmed_before_it_was_looked_for(self) -> None:
        said = await self.say(SECRET)
        acknowledged: list[Vectors] = []
        self.maintenance = LakeMaintenance(
            self.spark, self.lake, self.source, self.dsn, acknowledge=acknowledged.append
        )
        self.land()
        first = acknowledged[-1]
        self.assertEqual(first, {each: self.lake.table(each).position for each in first})
        await self.redact(said)

        def dies(*args: Any) -> Any:
            raise LakeFailed(path=self.lake.path, what="written", reason="the disk is full")

        patched = self.patch(maintenance, "erase", dies)
        self.assertRaises(LakeFailed, self.land)
        patched.restore()
        self.assertGreater(self.lake.table(STREAM).position.linear, first[STREAM].linear)
        # The database trims what is acknowledged, and purges the event.
        needed = positions_of_facts(acknowledged[-1], self.source.whole_events)["events"].linear
        self.sql("UPDATE synrepl._streams SET trimmed = %s WHERE stream = 'events'", needed)
        self.sql("DELETE FROM synrepl.events WHERE stream_id <= %s", needed)
        self.sql("DELETE FROM synrepl._room_events WHERE event_id = %s", said.event_id)
        self.land()
        self.assertEqual(holding(self.lake, SECRET), [])
        last = acknowledged[-1]
        self.assertEqual(last, {each: self.lake.table(each).position for each in last})

    async def test_many_redactions_do_not_make_a_check_large(self) -> None:
        said = await self.say(SECRET)
        self.land()
        await self.redact(said)
        real = self.source.redacted_events

        def with_others(
            stream: str, since: PositionVector, upto: PositionVector, collect: Any
        ) -> Any:
            others = (("!other", f"${number:043}", None) for number in range(100_000))
            return collect(chain(real(stream, since, upto, list), others))

        self.patch(self.source, "redacted_events", with_others)
        collect = AppliedRedactions.collected_in(redaction_folder(self.lake))
        late = with_others(STREAM, PositionVector(), PositionVector(), collect)
        columns = revisable_parts(self.source.stream_schema(STREAM), Revisions(late))
        self.assertLess(max(len(str(column)) for column in columns), 5000)
        self.assertEqual((self.checked().problems, self.checked().revised), ([], 1))
        self.patch(redacted_events, "MOST_HELD", 10_000)
        self.assertEqual((self.checked().problems, self.checked().revised), ([], 1))
        self.assertTrue([*redaction_folder(self.lake).iterdir()])

    async def test_a_redaction_that_does_not_apply_takes_nothing(self) -> None:
        said = await self.say("stays")
        create, _, levels, rules, _ = self.made.events[:5]
        join = {"membership": "join"}
        erin = USERS[4]
        entered = self.made.maker.event(
            "m.room.member", join, [rules], [create, levels, rules], erin, erin
        )
        more = {"redacts": said.event_id}
        wish = self.made.maker.event(
            "m.room.redaction", {}, [entered], [create, levels, entered], erin, **more
        )
        self.land()
        await self.persist(entered, wish)
        self.land()
        rows = self.rows()
        self.assertEqual(
            (rows[wish.event_id]["redacts"], rows[wish.event_id]["rejected"]),
            (said.event_id, False),
        )
        self.assertEqual(rows[said.event_id]["json"], said.raw.decode())
        self.assert_equal()

    async def test_erases_users(self) -> None:
        said = await self.say(SECRET)
        self.land()
        carol = USERS[1]
        self.assertTrue(holding(self.lake, carol))
        await self.rooms.record_erased([carol])
        self.land()
        self.assertEqual(holding(self.lake, carol), [])
        self.assertEqual(self.rows()[said.event_id]["sender"], USERS[0])
        self.assert_equal()
        self.sql("SELECT synrepl.erase(%s)", USERS[0])
        done = self.land()
        self.assertEqual(done.erased.subjects, 1)
        self.assertEqual(holding(self.lake, USERS[0]), [])
        self.assertEqual(holding(self.lake, SECRET), [])
        self.assert_equal()
        # What is erased in the database as well is the same.
        await self.rooms.erase_user(carol)
        self.assert_equal()

    async def test_what_was_erased_and_then_redacted_stays_erased(self) -> None:
        said = await self.say(f'{{"for": "{USERS[3]}"}}')
        self.land()
        self.sql("SELECT synrepl.erase(%s)", USERS[3])
        self.land()
        self.assertIsNone(self.rows()[said.event_id]["json"])
        await self.redact(said)
        self.land()
        row = self.rows()[said.event_id]
        self.assertEqual((row["redacted"], row["json"]), (True, None))
        self.assert_equal(revised=1)

    async def test_keeps_what_the_database_purges(self) -> None:
        self.land()
        before = self.rows()
        at = sorted(row["stream_id"] for row in before.values())[30]
        await self.rooms.purge(self.made.room_id, PurgePoint.of_stream(at), index_check=False)
        self.land()
        self.assertEqual(self.rows(), before)
        report = self.checked()
        self.assertEqual(report.problems, [])
        self.assertGreater(report.gone, 10)
        await self.rooms.forget(self.made.room_id, "elsewhere", force=True)
        self.assert_equal(gone=len(before))

    async def test_a_purged_event_that_lands_later_has_its_fact(self) -> None:
        await self.rooms.forget(self.made.room_id, "elsewhere", force=True)
        self.land()
        self.assertEqual({row["json"] for row in self.rows().values()}, {None})
        self.assert_equal()

    async def test_what_was_judged_by_partial_state_may_be_judged_again(self) -> None:
        self.sql("UPDATE synrepl._room_events SET flags = flags | 8 WHERE stream_id % 2 = 0")
        self.land()
        provisional = sum(row["partial_state"] for row in self.rows().values())
        self.sql(
            "UPDATE synrepl._room_events SET flags = flags & ~8,"
            " audience = audience # 1 WHERE flags & 8 <> 0"
        )
        self.assert_equal(revised=provisional)
        # Groups with equal states are merged.
        self.sql(
            "INSERT INTO synrepl._state_groups SELECT 900, prev_group, room_no, size, place, digest,"
            " changes FROM synrepl._state_groups"
            " WHERE group_no = (SELECT group_after FROM synrepl._room_events WHERE stream_id = 5)"
        )
        self.sql("UPDATE synrepl._room_events SET group_after = 900 WHERE stream_id = 5")
        provisional += 1
        self.assert_equal(revised=provisional)
        # Of others, a verdict that changes is a difference.
        self.sql("UPDATE synrepl._room_events SET flags = flags # 4 WHERE stream_id = 7")
        report = self.checked()
        self.assertEqual(report.revised, provisional)
        self.assertEqual(
            [str(each) for each in report.examples], ["fact 7, row 0: changed in soft_failed"]
        )

    async def test_names_damaged_rows_that_are_provisional_in_the_database_too(self) -> None:
        self.sql("UPDATE synrepl._room_events SET flags = flags | 8 WHERE stream_id % 2 = 0")
        self.land()
        self.assert_equal()

        def damaged(rows: list[dict[str, Any]]) -> None:
            by_id = {row["stream_id"]: row for row in rows}
            by_id[10]["soft_failed"] = not by_id[10]["soft_failed"]
            by_id[12]["changed_event_ids"] = ["$other"] * len(by_id[12]["changed_event_ids"] or "1")
            by_id[14]["state_size"] += 3
            by_id[16]["refusal"] = "nonsense"

        self.damage(damaged)
        report = self.checked()
        self.assertEqual({each.stream_id for each in report.examples}, {10, 12, 14, 16})
        self.assertEqual(report.revised, 0)

    async def test_names_a_redaction_that_was_never_in_the_database(self) -> None:
        self.land()

        def damaged(rows: list[dict[str, Any]]) -> None:
            for row in rows:
                if row["stream_id"] == 10:
                    row |= {"redacted": True, "json": None}

        self.damage(damaged)
        report = self.checked()
        self.assertEqual([each.stream_id for each in report.examples], [10])
        # A purge takes none back.
        self.sql("UPDATE synrepl._rooms SET epoch = 1")
        self.assertEqual([each.stream_id for each in self.checked().examples], [10])
        # In a room that was completed it may have been taken back.
        self.sql("UPDATE synrepl._room_heads SET completed_stream_id = 1000")
        self.assert_equal(revised=1)

    async def test_names_damaged_rows_also_of_purged_and_provisional_events(self) -> None:
        self.sql("UPDATE synrepl._room_events SET flags = flags | 8 WHERE stream_id = 9")
        self.land()
        self.sql("UPDATE synrepl._room_events SET flags = flags & ~8 WHERE stream_id = 9")
        # Others cite them, so they stay as outliers, as in a purge.
        self.sql("UPDATE synrepl._room_events SET stream_id = NULL WHERE stream_id IN (3, 4)")
        self.sql("UPDATE synrepl._rooms SET epoch = 1")
        # The state after one that is left was said by that after one of them.
        self.assert_equal(gone=2, revised=2)

        def damaged(rows: list[dict[str, Any]]) -> None:
            by_id = {row["stream_id"]: row for row in rows}
            by_id[3]["type"] = "m.other"
            by_id[6]["json"] = by_id[6]["json"].replace("depth", "death")
            by_id[8]["prev_event_ids"] = []
            by_id[9]["sender"] = "@nobody:a"
            by_id[10]["redacted"] = True
            by_id[11]["stored"] = False

        self.damage(damaged)
        report = self.checked()
        self.assertFalse(report.equal)
        found = {each.stream_id: each.columns for each in report.examples}
        self.assertEqual(
            found,
            {
                3: found[3],
                6: ("json",),
                8: ("prev_event_ids",),
                9: found[9],
                10: ("redacted",),
                11: ("stored",),
            },
        )
        self.assertIn("type", found[3])
        self.assertIn("sender", found[9])

    def states(self, wanted: str = "true") -> dict[str, dict[StateKey, str]]:
        """The states after events, from the lake alone."""
        table = self.lake.table(STREAM)
        rows = self.spark.read.parquet(*(str(table.path_of(file)) for file in table.files))
        found = states_in_lake(rows, wanted).collect()
        self.assertEqual({row.problem for row in found}, {None})
        return {
            row.event_id: {(each.type, each.state_key): each.event_id for each in row.state}
            for row in found
        }

    async def stored_states(self) -> dict[str, dict[StateKey, str]]:
        """The states after the room's events, as the store gives them."""

        def work(txn: Transaction) -> dict[str, dict[StateKey, str]]:
            txn.execute(
                "SELECT room_no, event_id, group_after FROM synrepl._room_events"
                " WHERE stream_id IS NOT NULL"
            )
            found = txn.fetchall()
            room = room_by_number(txn, found[0][0])
            states = read_states(txn, room, {group for *_, group in found})
            return {event_id: states[group] for _, event_id, group in found}

        return await self.one.process.database.run("read states", work)

    async def test_says_the_state_after_each_event(self) -> None:
        self.land()
        self.made.more(60)
        await self.persist(*self.made.events[65:])
        self.land()
        states = await self.stored_states()
        self.assertEqual(len(states), 125)
        self.assertEqual(self.states(), states)
        messages = {key for key, row in self.rows().items() if row["type"] == "m.room.message"}
        self.assertEqual(
            self.states("type = 'm.room.message'"), {each: states[each] for each in messages}
        )
        # What becomes of groups, and of history, changes nothing in the lake, and what comes then fits it.
        await self.rooms.compact(self.made.room_id, index_check=False)
        self.assert_equal()
        at = sorted(row["stream_id"] for row in self.rows().values())[60]
        await self.rooms.purge(self.made.room_id, PurgePoint.of_stream(at), index_check=False)
        self.made.more(10)
        await self.persist(*self.made.events[125:])
        self.land()
        self.assertEqual(self.states(), states | await self.stored_states())
        report = self.checked()
        self.assertEqual(report.problems, [])
        self.assertGreater(report.gone, 10)
        # The database says some states by others now, because it has purged the events.
        self.assertGreater(report.revised, 0)

    async def test_says_states_without_erased_users(self) -> None:
        self.land()
        carol = USERS[1]
        await self.rooms.record_erased([carol])
        self.land()
        states = await self.stored_states()
        rest = {
            each: {key: value for key, value in state.items() if key[1] != carol}
            for each, state in states.items()
        }
        self.assertNotEqual(rest, states)
        self.assertEqual(self.states(), rest)

    async def test_names_states_that_are_not_those_of_the_database(self) -> None:
        self.land()
        rows = sorted(self.rows().values(), key=lambda row: row["stream_id"])
        own = next(row for row in rows[10:] if len(row["changed_types"]) == 1)
        number, base = own["stream_id"], own["base_stream_id"]

        def damaged(rows: list[dict[str, Any]]) -> None:
            by_id = {row["stream_id"]: row for row in rows}
            by_id[number]["changed_event_ids"] = ["$other"]
            by_id[number + 1]["base_stream_id"] = by_id[number + 1]["base_stream_id"] - 1
            by_id[number + 2]["state_size"] += 1

        self.damage(damaged)
        found = {each.stream_id: each.columns for each in self.checked().examples}
        self.assertEqual(
            found,
            {
                number: ("changed_event_ids",),
                number + 1: ("base_stream_id",),
                number + 2: ("state_size",),
            },
        )
        self.assertLess(base, number)
        # Also in a room of which something was purged: the database still has that base.
        at = sorted(row["stream_id"] for row in rows)[8]
        await self.rooms.purge(self.made.room_id, PurgePoint.of_stream(at), index_check=False)
        report = self.checked()
        self.assertGreater(report.revised, 0)
        self.assertEqual({each.stream_id: each.columns for each in report.examples}, found)
        # One that is gone was not the newest prev event.
        self.damage(
            lambda rows: rows[number + 1 - rows[0]["stream_id"]].update(base_stream_id=at - 1)
        )
        report = self.checked()
        self.assertEqual({each.stream_id: each.columns for each in report.examples}, found)

    async def test_a_lost_file_is_made_again_as_it_is_to_be_shown(self) -> None:
        said = await self.say(SECRET)
        self.land()
        await self.redact(said)
        self.land()
        before = self.rows()
        table = self.lake.table(STREAM)
        for file in table.files:
            table.path_of(file).unlink()
        with self.lake.write_lock():
            damaged = find_damaged(self.lake, [STREAM])
            repair(self.spark, self.lake, self.source, self.dsn, damaged)
        self.assertEqual(self.rows(), before)
        self.assertEqual(holding(self.lake, SECRET), [])

    async def test_are_a_streaming_source(self) -> None:
        there = self.directory / "rows"

        def read() -> dict[str, Any]:
            rows = self.spark.readStream.format("synrepl").options(
                database=self.dsn,
                insecure="true",
                stream=STREAM,
                columns="event_id, json, redacted",
            )
            places = {"path": str(there), "checkpointLocation": str(self.directory / "checkpoint")}
            query = rows.load().writeStream.format("parquet").options(**places)
            query.trigger(availableNow=True).start().awaitTermination()
            return {row.event_id: row.json for row in self.spark.read.parquet(str(there)).collect()}

        register(self.spark)
        gone = await self.say(SECRET)
        redaction = await self.redact(gone)
        ids = {each.event_id for each in (*self.made.events, gone, redaction)}
        self.assertEqual(read().keys(), ids)
        self.assertNotIn(SECRET, read()[gone.event_id])
        said = await self.say("news")
        self.assertEqual(read()[said.event_id], said.raw.decode())
        whole = self.spark.read.format("synrepl").options(
            database=self.dsn, insecure="true", stream="*", columns="stream, stream_id"
        )
        self.assertNotIn(STREAM, {row.stream for row in whole.load().distinct().collect()})

    async def test_are_not_replayed(self) -> None:
        self.land()
        self.assertNotIn(STREAM, replay_ranges(self.lake, Extent()))
        error = self.assertRaises(
            RoomsNotReplayed, replay_ranges, self.lake, Extent(streams=[STREAM])
        )
        self.assertIn("replay stream 'events'", str(error))

    def test_a_check_of_a_copy_says_that_it_has_none(self) -> None:
        self.land()
        report = check(
            self.spark,
            self.lake,
            self.source,
            self.dsn,
            Extent(streams=["events", STREAM]),
            copy=True,
        )
        (problem,) = report.problems
        self.assertIn("'room_events' was not compared: a copy has facts, and no rooms", problem)
        self.assertFalse(report.equal)
