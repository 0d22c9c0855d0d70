"""``synrepl lake run`` with jobs that read the rooms of a database."""

from __future__ import annotations

import json

from synrepl.cli.lake.options import NoDatabaseGiven
from synrepl.testing.postgres import fresh_database
from system_tests.cli.lake_case import LakeCase
from system_tests.pipeline.spark_fixture import shared_session
from tests.storage.foreign_rooms import room_database, rooms_of

FAILED, USAGE = 1, 2
VERSION = "1.43.0"


class RoomJobs(LakeCase):
    async def test_verifies_the_rooms_of_a_synapse_and_writes_their_states(self) -> None:
        dsn = await room_database(VERSION, None)
        database = ("--database-path", self.dsn_file(dsn))
        found = json.loads(self.output_of("run", "verify-rooms", *database, "--json"))
        self.assertEqual(
            [(row["kind"], row["type"]) for row in found], [("state", "m.room.join_rules")]
        )
        other = next(
            room.room_id for room in rooms_of(VERSION) if room.room_id != found[0]["room_id"]
        )
        shown = self.output_of("run", "verify-rooms", *database, "--room", other)
        self.assertIn("Nothing differs.", shown)
        states = self.directory / "states"
        self.output_of(
            *("run", "state-at-every-event", *database),
            *("--room", other, "--set", "part_events=5", "--parquet", states),
        )
        rows = shared_session().read.parquet(str(states)).collect()
        room = next(room for room in rooms_of(VERSION) if room.room_id == other)
        self.assertEqual(
            {row.event_id for row in rows},
            {row["event_id"] for row in room.rows if not row["outlier"]},
        )
        events = self.directory / "events"
        self.output_of("run", "room-events", *database, "--room", other, "--parquet", events)
        whole = shared_session().read.parquet(str(events)).collect()
        self.assertEqual(
            {row.event_id: (row.outlier, json.loads(row.json)["type"]) for row in whole},
            {row["event_id"]: (row["outlier"], row["event"]["type"]) for row in room.rows},
        )
        again = self.in_process("run", "state-at-every-event", *database, "--parquet", states)
        self.assertEqual(again.code, USAGE)
        self.assertIn("exists", again.err)

    def assert_refused(self, *arguments: object, says: str, code: int) -> None:
        """Check that a command fails before Spark is started."""
        done = self.without_session("run", *arguments, "--scratch", self.directory / "nowhere")
        self.assertEqual((done.code, done.out), (code, ""), done)
        self.assertIn(says, done.err)

    async def test_refuses_before_spark_is_started(self) -> None:
        dsn = await fresh_database(self)
        database = ("--database-path", self.dsn_file(dsn))
        for arguments, says, code in (
            (("verify-rooms",), str(NoDatabaseGiven()), USAGE),
            (("verify-rooms", self.lake, *database), "reads a database", USAGE),
            (("heat", self.lake, "--room", "!a:x"), "reads a lake", USAGE),
            (
                ("verify-rooms", *database),
                "neither synrepl's tables nor those of a Synapse",
                FAILED,
            ),
            (("verify-rooms", *database, "--set", "what_if"), "NAME=VALUE", USAGE),
            (("verify-rooms", *database, "--set", "what_if=99"), "a room version", FAILED),
            (("verify-rooms", *database, "--set", "signatures=1"), "yes or no", FAILED),
            (("state-at-every-event", *database, "--set", "part_events=0"), "at least 1", FAILED),
            (("state-at-every-event", *database, "--set", "what_if=9"), "has no setting", FAILED),
            (("verify-room", self.lake), "did you mean 'verify-rooms'?", FAILED),
        ):
            self.assert_refused(*arguments, says=says, code=code)

    async def test_refuses_rooms_that_are_not_there(self) -> None:
        dsn = await room_database(VERSION, None)
        database = ("--database-path", self.dsn_file(dsn))
        known = rooms_of(VERSION)[0].room_id
        rooms = ("--room", known, "--room", "!typo:example.org")
        says = "no events of !typo:example.org"
        self.assert_refused("verify-rooms", *database, *rooms, says=says, code=FAILED)
