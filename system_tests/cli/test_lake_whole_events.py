"""``synrepl lake``: whole events of rooms, landed, followed, erased and checked."""

from __future__ import annotations

import json
import signal
from random import Random
from typing import Any

import pyarrow.parquet as pq
from twisted.internet.defer import Deferred

from simulator.rooms.random_rooms import RandomRoom
from synrepl.pipeline.lake.lake import Lake
from synrepl.rooms import Event
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.tables import ensure_tables
from system_tests.cli.lake_case import LakeCase
from system_tests.pipeline.test_erase import holding
from tests.storage.postgres import MIGRATED, Process
from tests.storage.rooms.store_case import PersistingProcess

SECRET = "what nobody should read"


class WholeEventsByCommand(LakeCase):
    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        self.dsn = await MIGRATED.copy(self)
        process = Process(self.dsn, "one")
        self.addCleanup(lambda: Deferred.fromCoroutine(process.close()))
        await process.database.run("tables", lambda txn: ensure_tables(txn, ROOM_STREAMS))
        self.one = PersistingProcess(process)
        await self.one.writer.start()
        self.addCleanup(self.one.writer.stop)
        self.made = RandomRoom(Random(4), "11", "told")
        await self.persist(*self.made.events)
        self.database = ("--database-path", self.dsn_file(self.dsn))

    async def persist(self, *events: Event) -> None:
        await self.one.persist(self.made.room_id, self.made.version, events)

    async def say(self, kind: str, content: dict[str, Any]) -> Event:
        create, joined, levels, *_ = self.made.events
        said = self.made.maker.event(kind, content, [levels], [create, joined, levels])
        await self.persist(said)
        return said

    def json_of(self, event: Event) -> str | None:
        """The JSON of an event in the lake."""
        table = Lake(self.lake).table("room_events")
        for file in table.files:
            for row in pq.read_table(table.path_of(file)).to_pylist():
                if row["event_id"] == event.event_id:
                    return str(row["json"])
        return None

    async def test_lands_redacts_and_checks_them(self) -> None:
        said = await self.say("m.room.message", {"body": SECRET})
        shown = self.output_of("land", self.lake, *self.database)
        self.assertIn("room_events     6", shown)
        self.assertEqual(self.json_of(said), said.raw.decode())
        await self.say("m.room.redaction", {"redacts": said.event_id})
        behind = self.output_of("check", self.lake, *self.database)
        self.assertIn("1 events were judged again or redacted by the database since", behind)
        self.assertIn("All equal.", behind)
        self.assertIn("erased: 1 redacted event", self.output_of("land", self.lake, *self.database))
        self.assertEqual(holding(Lake(self.lake), SECRET), [])
        checked = json.loads(self.output_of("check", self.lake, *self.database, "--json"))
        (found,) = (each for each in checked["streams"] if each["stream"] == "room_events")
        self.assertEqual(
            (found["outcome"], found["source_rows"], found["revised"]), ("equal", 7, 0)
        )
        # The database keeps facts, whoever reads them.
        known = self.sql(
            self.dsn, "SELECT array_agg(DISTINCT stream ORDER BY stream) FROM synrepl._followers"
        )
        self.assertEqual(known, ["backfill", "caches", "events"])

    async def test_keeps_facts_until_all_tables_have_them(self) -> None:
        land = ("land", self.lake, *self.database)
        self.output_of(*land)
        acknowledged = "SELECT max(position) FROM synrepl._followers WHERE stream = 'events'"
        first = self.sql(self.dsn, acknowledged)
        await self.say("m.room.message", {"body": "more"})
        self.output_of(*land, "--stream", "events")
        self.assertEqual(self.sql(self.dsn, acknowledged), first)
        self.output_of(*land)
        self.assertEqual(self.sql(self.dsn, acknowledged), first + 1)

    async def test_follows_them(self) -> None:
        (self.directory / "scratch").mkdir()
        command = self.start(
            "lake", "land", self.lake, *self.database, "--follow", "--every", "0.1", "--json",
            "--master", "local[1]", "--driver-memory", "512m",
            "--scratch", self.directory / "scratch",
        )  # fmt: skip
        (first,) = await command.lines(1)
        self.assertEqual(json.loads(first)["rows"]["room_events"], 5)
        said = await self.say("m.room.message", {"body": SECRET})
        (_, second) = await command.lines(2)
        self.assertEqual(json.loads(second)["rows"]["room_events"], 1)
        self.assertEqual(self.json_of(said), said.raw.decode())
        await self.say("m.room.redaction", {"redacts": said.event_id})
        (*_, third) = await command.lines(3)
        self.assertEqual(json.loads(third)["erased"]["redactions"], 1)
        command.signal("INT")
        done = await command.done()
        self.assertEqual((done.code, done.err), (128 + signal.SIGINT, ""))
        self.assertEqual(holding(Lake(self.lake), SECRET), [])
