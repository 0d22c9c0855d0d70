"""What ``synrepl lake`` refuses: in one line, and before Spark is started."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

from synrepl.cli.lake.options import BadSparkSetting, NoDatabaseGiven
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.testing.postgres import fresh_database
from system_tests.cli.lake_case import LakeCase
from tests.cli.cli_case import free_port
from tests.pipeline.synthetic_lake import add, schema_of
from tests.storage.foreign_databases import foreign_database
from tests.storage.postgres import PREPARED

FAILED, USAGE = 1, 2


class LakeRefusals(LakeCase):
    """Errors before Spark is started: its scratch directory does not exist, so that a start would fail."""

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        self.dsn = await PREPARED.copy(self)
        self.database = ("--database-path", self.dsn_file(self.dsn))
        with closing(open_source_database(self.dsn, "tests")) as source:
            self.server = source.server

    def lake_with_two_facts(self) -> Lake:
        """A lake of this database, with two facts of one stream."""
        lake = Lake.open_or_create(self.lake, self.server, False)
        add(lake, schema_of("backfill"), [{"stream_id": -1, "event_id": "$a"},
                                         {"stream_id": -2, "event_id": "$b"}])  # fmt: skip
        return lake

    def assert_refused(self, *arguments: object, says: str, code: int = FAILED) -> None:
        """Check that a command fails with one line, and without Spark."""
        real = ("--scratch", self.directory / "nowhere")
        done = self.without_session(*arguments, *real)
        self.assertEqual((done.code, done.out), (code, ""), done)
        self.assertEqual(done.err.count("\n"), 1, done.err)
        self.assertTrue(done.err.startswith("synrepl: error: "), done.err)
        self.assertIn(says, done.err)

    def test_requires_a_database_and_refuses_a_password(self) -> None:
        for command in ("land", "check", "replay"):
            self.assert_refused(command, self.lake, says=str(NoDatabaseGiven()), code=USAGE)
        shown = ("--database", "postgresql://u:hush@localhost/x")
        done = self.without_session("land", self.lake, *shown)
        self.assertEqual(done.code, USAGE)
        self.assertIn("holds a password", done.err)
        self.assertNotIn("hush", done.err)
        self.assertFalse(self.lake.exists())

    def test_reports_an_unreachable_or_missing_database(self) -> None:
        lake = self.lake_with_two_facts().path
        away = self.dsn_file(f"postgresql://u:hush@127.0.0.1:{free_port()}/x", "away")
        for command in ("land", "check", "replay"):
            where = ("--database-path", away, "--patience", "0")
            self.assert_refused(command, lake, *where, says="cannot be reached")
        none = self.dsn_file(self.dsn.rpartition("/")[0] + "/no_such_database", "none")
        for command in ("land", "check", "replay"):
            self.assert_refused(
                command, lake, "--database-path", none, says="waiting will not help"
            )

    async def test_refuses_a_database_without_streams(self) -> None:
        empty = self.dsn_file(await fresh_database(self), "empty")
        self.assert_refused(
            "land", self.lake, "--database-path", empty, says="neither synrepl's tables"
        )
        self.assert_refused(
            "check",
            self.lake_with_two_facts().path,
            "--database-path",
            empty,
            says="neither synrepl's tables",
        )

    async def test_refuses_to_replay_into_a_synapse(self) -> None:
        dsn = self.dsn_file(await foreign_database("1.163.2"), "synapse")
        self.assert_refused(
            "replay",
            self.lake_with_two_facts().path,
            "--database-path",
            dsn,
            says="that of a real Synapse",
        )

    def test_refuses_a_folder_that_is_not_a_lake(self) -> None:
        self.lake.mkdir()
        (self.lake / "letter").touch()
        says = "is no lake: "
        self.assert_refused("land", self.lake, *self.database, says=says)
        self.assert_refused("check", self.lake, *self.database, says=says)
        self.assert_refused("replay", self.lake, *self.database, says=says)
        self.assert_refused("compact", self.lake, says=says)
        self.assert_refused("run", "activity", self.lake, says=says)
        done = self.without_session("status", self.lake)
        self.assertEqual((done.code, done.err.count("\n")), (FAILED, 1))
        self.assertIn(says, done.err)

    def test_refuses_urls_where_no_lake_can_be(self) -> None:
        commands = [(name, self.database) for name in ("land", "check", "replay")]
        for url in ("hdfs://host:9000/lake", "s3:bucket/lake", "http://host/lake", "x:y"):
            says = f"{url!r} is no place for a lake"
            for name, database in (*commands, ("compact", ())):
                self.assert_refused(name, url, *database, says=says, code=USAGE)
            self.assert_refused("run", "activity", url, says=says, code=USAGE)
            done = self.without_session("status", url)
            self.assertEqual((done.code, done.out, done.err.count("\n")), (USAGE, "", 1), done)
            self.assertIn(says, done.err)
            self.assertFalse(Path(url.partition("/")[0]).exists())

    def test_refuses_the_lake_of_another_database(self) -> None:
        Lake.open_or_create(self.lake, "somebody/else", False)
        for command in ("land", "check"):
            self.assert_refused(
                command, self.lake, *self.database, says="is of database somebody/else"
            )

    def test_refuses_unknown_streams(self) -> None:
        of_database = "there is no stream 'note' in this database; did you mean 'notes'?"
        self.assert_refused("land", self.lake, *self.database, "--stream", "note", says=of_database)
        self.assert_refused(
            "land", self.lake, *self.database, "--accept-gap", "note", says=of_database
        )
        self.assertFalse(self.lake.exists())
        lake = self.lake_with_two_facts().path
        in_lake = "stream 'note' is not in the lake"
        for command in ("check", "replay"):
            self.assert_refused(command, lake, *self.database, "--stream", "note", says=in_lake)
        self.assert_refused("compact", lake, "--stream", "note", says=in_lake)

    def test_refuses_to_replay_more_than_was_landed(self) -> None:
        lake = self.lake_with_two_facts().path
        self.assert_refused(
            "replay", lake, *self.database, "--upto", "3", says="and 3 was asked for"
        )

    def test_refuses_unknown_jobs_and_missing_inputs(self) -> None:
        lake = self.lake_with_two_facts().path
        self.assert_refused("run", "activty", lake, says="did you mean 'activity'?")
        self.assert_refused("run", "heat", lake, says="has none of the streams that are wanted")

    def test_refuses_bad_spark_settings(self) -> None:
        lake = self.lake_with_two_facts().path
        bad = {
            ("--master", "yarn"): "'yarn' is no Spark master",
            ("--conf", "spark.x"): str(BadSparkSetting(setting="spark.x")),
            ("--conf", "x=1"): "'x' is no setting of Spark",
            ("--conf", "spark.master=local"): "spark.master cannot be set this way",
            ("--driver-memory", "much"): "no amount of memory",
        }
        for arguments, says in bad.items():
            self.assert_refused("run", "activity", lake, *arguments, says=says, code=USAGE)

    def test_refuses_a_lake_that_another_process_changes(self) -> None:
        lake = self.lake_with_two_facts()
        says = "another process is changing the lake"
        with lake.write_lock():
            for command in ("land", "check"):
                self.assert_refused(command, lake.path, *self.database, says=says)
            self.assert_refused("compact", lake.path, says=says)

    def test_refuses_an_invalid_name_and_a_taken_port(self) -> None:
        self.assert_refused(
            "land", self.lake, *self.database, "--name", "a b", says="'a b'", code=USAGE
        )
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.assert_refused(
                "land", self.lake, *self.database, "--metrics-port", port, says="another --metrics"
            )

    async def test_a_process_prints_only_the_error(self) -> None:
        done = await self.run_command("lake", "land", self.lake, *self.database, "--stream", "note")
        self.assertEqual((done.code, done.out), (FAILED, ""))
        self.assertEqual(done.err.count("\n"), 1, done.err)
        self.assertIn("there is no stream 'note'", done.err)
