"""``synrepl lake``: what its commands do and say, on real PostgreSQL and Spark."""

from __future__ import annotations

import json
from pathlib import Path

from deltalake import DeltaTable

from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.watermarks import Watermarks
from synrepl.testing.postgres import fresh_database
from system_tests.cli.lake_case import LakeCase
from system_tests.pipeline.landing_case import rows_of
from tests.pipeline.synthetic_lake import add, begin, schema_of
from tests.storage.postgres import PREPARED
from tests.storage.samples import TAMPERING

ALICE = "@alice:example.org"


class LakeCommands(LakeCase):
    """A lake that is landed, shown, checked, queried and replayed."""

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        self.dsn = await PREPARED.copy(self)
        self.database = ("--database-path", self.dsn_file(self.dsn))
        self.append_notes(self.dsn, "one", "two", ALICE)

    def land(self, *arguments: object) -> str:
        return self.output_of("land", self.lake, *self.database, *arguments)

    def check(self, *arguments: object) -> str:
        return self.output_of("check", self.lake, *self.database, *arguments)

    def texts(self) -> list[object]:
        return [row[3] for row in rows_of(Lake(self.lake).table("notes"))]

    def repair(self, *arguments: object) -> str:
        return self.output_of("repair", self.lake, *self.database, *arguments)

    def test_repair_makes_a_lost_file_again_and_names_what_it_held(self) -> None:
        self.land()
        self.assertEqual(self.repair(), "No file is lost or damaged.\n")
        table = Lake(self.lake).table("notes")
        (file,) = table.files
        (Path(str(table.path)) / file.name).unlink()
        self.assertEqual(
            self.repair().splitlines(),
            [
                f"stream 'notes': {file.name}: no such file",
                "  3 rows of writer 'sql', tokens 1 to 3: made again",
            ],
        )
        self.assertEqual(self.texts(), ["one", "two", ALICE])
        self.assertIn("All equal.", self.check())

    def test_repair_goes_back_before_a_lost_commit_and_land_brings_the_rest(self) -> None:
        for text in "three", "four":
            self.land()
            self.append_notes(self.dsn, text)
        self.land()
        table = Lake(self.lake).table("notes")
        log = Path(str(table.path)) / "_delta_log"
        commits = sorted(log.glob("*.json"))
        lands = [path for path in commits if '"synrepl.operation":"land"' in path.read_text()]
        lands[1].unlink()
        at, newest = int(lands[1].stem), int(commits[-1].stem)
        done = json.loads(self.repair("--json"))
        (gone_back,) = done["logs"]
        self.assertEqual(
            (gone_back["damage"], gone_back["version"], gone_back["newest"]),
            ([f"commit {at} is lost"], at - 1, newest),
        )
        self.assertEqual(gone_back["position"], "3~sql.3")
        self.assertIn("notes      2  5~sql.5", self.land())
        self.assertEqual(
            sorted(map(str, self.texts())), sorted(["one", "two", ALICE, "three", "four"])
        )
        self.assertIn("All equal.", self.check())

    def test_repair_names_a_damaged_checkpoint_of_which_nothing_is_lost(self) -> None:
        self.land()
        table = DeltaTable(str(Lake(self.lake).table("notes").path))
        table.create_checkpoint()
        version = table.version()
        log = self.lake / "streams" / "notes" / "_delta_log"
        (log / f"{version:020}.checkpoint.parquet").write_bytes(b"PAR1")
        self.assertEqual(
            self.repair().splitlines(),
            [
                f"stream 'notes': its log is damaged: checkpoint {version} cannot be read",
                f"  nothing is lost: version {version} can be read from the rest of it",
            ],
        )
        self.assertIn("All equal.", self.check())

    def test_repair_names_lost_watermarks_and_adds_those_of_the_database(self) -> None:
        self.land()
        marks = Watermarks(Lake(self.lake))
        (file,) = (self.lake / "marks").glob("*.parquet")
        file.write_bytes(b"")
        for command in "land", "check":
            done = self.in_process(command, self.lake, *self.database)
            self.assertEqual(done.code, 1, done)
            self.assertIn(f"file {file} of the lake's watermarks is damaged: 0 of its", done.err)
        self.assertIn("All equal.", done.out)
        self.sql(
            self.dsn,
            "INSERT INTO synrepl._stream_marks (stream, token, at)"
            " VALUES ('notes', 2, to_timestamp(1750000000))",
        )
        (at,) = marks.find_damaged()[0].file.extremes["at"][:1]
        lines = self.repair().splitlines()
        self.assertIn(f"watermarks: {file.name}: 0 of its", lines[0])
        self.assertEqual(
            lines[1:],
            [
                f"  lost: 3 marks (of streams backfill to notes, tokens 0 to 3, times {at} to {at}):"
                " days of rows that were landed meanwhile may be later ones",
                "watermarks: added again from the database: 1 mark",
            ],
        )
        self.assertEqual(marks.table()["token"].to_pylist(), [2])
        self.assertEqual(self.repair(), "No file is lost or damaged.\n")
        self.assertIn("All equal.", self.check())
        self.assertEqual(self.land(), "Nothing new.\n")
        self.assertEqual(marks.table()["token"].to_pylist().count(3), 1)
        for commit in (self.lake / "marks" / "_delta_log").glob("*.json"):
            commit.write_text("{")
        done = self.in_process("check", self.lake, *self.database)
        self.assertEqual((done.code, "All equal." in done.out), (1, True), done)
        self.assertIn("synrepl lake repair", done.err)

    def test_land_brings_new_erased_and_joined_rows_up_to_date(self) -> None:
        answer = json.loads(self.land("--json"))
        self.assertEqual(answer["rows"], {"notes": 3})
        self.assertEqual(answer["positions"]["notes"], "3~sql.3")
        self.assertEqual((answer["quarantined"], answer["files_joined"]), ({}, 0))
        self.assertEqual(answer["erased"], {"files": 0, "rows": 0, "subjects": 0, "redactions": 0})
        self.assertEqual(self.land(), "Nothing new.\n")
        self.append_notes(self.dsn, "three")
        self.assertEqual(
            self.land().splitlines(),
            [
                "stream  rows  position",
                "notes      1  4~sql.4",
                "Nothing new in 2 other streams.",
                "2 small files joined into larger ones",
            ],
        )
        self.sql(self.dsn, "SELECT synrepl.erase(%s)", ALICE)
        self.assertEqual(
            self.land().splitlines(),
            [
                "Nothing new.",
                "erased: 1 subject, in 1 row of 1 file",
                "replaced files are deleted at once: who reads an older version of the tables fails",
            ],
        )
        self.assertEqual(self.texts(), ["one", "two", None, "three"])
        self.sql(self.dsn, "SELECT synrepl.erase('@nobody:example.org')")
        self.assertEqual(
            self.land().splitlines(),
            ["Nothing new.", "erased: 1 subject, in 0 rows of 0 files"],
        )
        self.assertIn("All equal.", self.check())
        followed = "SELECT string_agg(DISTINCT follower, ',') FROM synrepl._followers"
        self.assertEqual(self.sql(self.dsn, followed), "lake")

    def test_status_shows_each_stream(self) -> None:
        self.land()
        lines = self.output_of("status", self.lake).splitlines()
        self.assertTrue(lines[0].startswith("A lake of database "), lines)
        self.assertEqual(
            lines[2].split(), ["stream", "rows", "quarantined", "files", "MiB", "position"]
        )
        self.assertEqual(lines[3].split(), ["notes", "3", "-", "1", "0.0", "3~sql.3"])
        self.assertEqual(lines[4:], ["", "No rows yet in 2 other streams."])
        streams = json.loads(self.output_of("status", self.lake, "--json"))["streams"]
        self.assertEqual(set(streams), {"notes", "everything", "backfill"})
        self.assertEqual(streams["notes"]["rows"], 3)

    def test_check_reports_equal_and_different_lakes(self) -> None:
        self.land()
        self.assertEqual(
            self.check().splitlines(),
            [
                "stream  rows in the database  in the lake  ranges  tokens",
                "notes                      3            3       1  1 to 3  equal",
                "2 other streams have no rows on either side.",
                "All equal.",
            ],
        )
        self.sql(self.dsn, f"{TAMPERING}; UPDATE synrepl.notes SET n = 99 WHERE stream_id = 2")
        done = self.in_process("check", self.lake, *self.database)
        self.assertEqual((done.code, done.err), (1, ""), done)
        for part in ("DIFFERS", "tokens 1 to 3: 1 changed", "fact 2, row 0: changed in n",
                     "The database and the lake differ."):  # fmt: skip
            self.assertIn(part, done.out)
        done = self.in_process("check", self.lake, *self.database, "--json", "--stream", "notes")
        self.assertEqual(done.code, 1)
        answer = json.loads(done.out)
        self.assertFalse(answer["equal"])
        self.assertEqual([each["stream"] for each in answer["streams"]], ["notes"])

    def test_check_says_that_a_stream_was_trimmed_to_its_end(self) -> None:
        self.land()
        self.sql(
            self.dsn,
            f"{TAMPERING}; DELETE FROM synrepl.notes;"
            " UPDATE synrepl._streams SET trimmed = 3 WHERE stream = 'notes'",
        )
        self.assertEqual(
            self.check().splitlines()[1:],
            [
                "notes                      0            0       1  none"
                "    nothing left to compare; not comparable up to 3, which was trimmed",
                "2 other streams have no rows on either side.",
                "All equal.",
            ],
        )

    def test_check_says_what_is_still_to_be_erased(self) -> None:
        self.land()
        self.sql(self.dsn, "SELECT synrepl.erase(%s)", ALICE)
        done = self.in_process("check", self.lake, *self.database)
        self.assertEqual(done.code, 1, done)
        self.assertIn(
            "Still to be erased from the lake: 1 user, and the events of 0 redactions.", done.out
        )
        self.land()
        self.assertIn("All equal.", self.check())

    def test_check_names_a_lost_file_in_which_it_looks_for_redactions(self) -> None:
        row = {"event_id": "$b", "room_id": "!a", "type": "m.room.redaction", "redacts": "$a"}
        self.sql(self.dsn, "SELECT synrepl.append('backfill', %s, 'sql')", json.dumps([row]))
        self.land()
        table = Lake(self.lake).table("backfill")
        (file,) = table.files
        (Path(str(table.path)) / file.name).unlink()
        done = self.in_process("check", self.lake, *self.database)
        self.assertEqual((done.code, done.out), (1, ""), done)
        self.assertIn(f"file {file.name} with 1 rows, tokens 1 to 1, there is no such", done.err)

    async def test_replay_fills_another_database(self) -> None:
        self.sql(self.dsn, "SELECT synrepl.erase(%s)", ALICE)
        self.land()
        copy = await fresh_database(self)
        where = ("--database-path", self.dsn_file(copy, "copy.dsn"))
        lines = self.output_of("replay", self.lake, *where).splitlines()
        self.assertEqual(lines[1].split(), ["notes", "3", "0", "3"])
        self.assertEqual(lines[2:], ["No rows to replay in 2 other streams."])
        again = json.loads(self.output_of("replay", self.lake, *where, "--json"))
        self.assertEqual((again["notes"]["rows"], again["notes"]["rows_there"]), (0, 3))
        self.assertIn("All equal.", self.output_of("check", self.lake, *where, "--copy"))
        self.sql(copy, f"{TAMPERING}; DELETE FROM synrepl.notes WHERE stream_id = 2")
        done = self.in_process("check", self.lake, *where, "--copy")
        self.assertEqual(done.code, 1, done)
        self.assertIn("fact 2, row 0: only in the lake", done.out)
        self.assertIn("The copy and the lake differ.", done.out)


class LakeCommandsWithoutDatabase(LakeCase):
    """Commands that need no database, over given rows."""

    def setUp(self) -> None:
        super().setUp()
        rows = [
            {
                "stream_id": n,
                "cache_func": f"get_{n % 2}",
                "keys": "[]",
                "invalidation_ts": 1000 * n,
            }
            for n in range(1, 7)
        ]
        add(begin(self.lake), schema_of("caches"), rows, files=3)

    def test_run_prints_and_draws_a_job(self) -> None:
        picture = self.directory / "heat.png"
        rows = json.loads(self.output_of("run", "heat", self.lake, "--json", "--plot", picture))
        self.assertEqual([row["cache"] for row in rows], ["get_0", "get_1"])
        self.assertEqual(picture.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        shown = self.output_of("run", "heat", self.lake, "--rows", "1")
        self.assertIn("get_0", shown)
        self.assertIn("and 1 more row (--rows, --json)", shown)
        self.assertIn("Physical Plan", self.output_of("run", "heat", self.lake, "--explain"))
        nowhere = self.directory / "nowhere" / "heat.png"
        done = self.in_process("run", "heat", self.lake, "--plot", nowhere)
        self.assertEqual(done.code, 1)
        self.assertIn("get_0", done.out)
        self.assertIn("cannot be written", done.err)

    def test_options_of_jobs_of_rooms_are_refused(self) -> None:
        for option in ("--database", "--room", "--parquet", "--html", "--other-database-path"):
            done = self.in_process("run", "lag", self.lake, option, "x")
            self.assertEqual((done.code, done.out), (2, ""), done)
            self.assertIn("neither --room, --set, --parquet nor --html", done.err)

    def test_a_result_without_numbers_is_a_picture_that_says_so(self) -> None:
        picture = self.directory / "lag.png"
        shown = self.output_of("run", "lag", self.lake, "--plot", picture).splitlines()
        self.assertEqual(
            shown[-1],
            "nothing to draw, as no row of the result has both a known time and a number;"
            f" so says the picture in {picture}",
        )
        self.assertEqual(picture.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_compact_joins_small_files(self) -> None:
        done = json.loads(self.output_of("compact", self.lake, "--json"))
        self.assertEqual(done, {"caches": {"joined": 3, "made": 1, "removed": 0}})
        # Readers may have them open, unless they are said not to matter.
        done = json.loads(self.output_of("compact", self.lake, "--json", "--retention-hours", "0"))
        self.assertEqual(done, {"caches": {"joined": 0, "made": 0, "removed": 3}})
        self.assertEqual(
            [row[0] for row in rows_of(Lake(self.lake).table("caches"))], [*range(1, 7)]
        )
