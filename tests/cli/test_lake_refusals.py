"""What ``synrepl lake`` refuses: in one line, and before Spark is started."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

from synrepl.cli.lake.options import BadSparkSetting, NoDatabaseGiven
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.testing.postgres import fresh_database
from tests.cli.cli_case import free_port
from tests.cli.lake_case import LakeCase
from tests.pipeline.synthetic_lake import add, schema_of
from tests.storage.foreign_databases import foreign_database
from tests.storage.postgres import prepare

FAILED, USAGE = 1, 2


class Refusals(LakeCase):
    """Whoever started Spark here would fail for another reason: there is no place for its files."""

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        self.dsn = await fresh_database(self, prepare)
        self.database = ("--database-path", self.dsn_file(self.dsn))
        with closing(open_source_database(self.dsn, "tests")) as origin:
            self.server = origin.server

    def begun(self) -> Lake:
        """A lake of this database with one stream, of which it has two facts."""
        lake = Lake.open_or_create(self.lake, self.server, False)
        add(lake, schema_of("backfill"), [{"stream_id": -1, "event_id": "$a"},
                                         {"stream_id": -2, "event_id": "$b"}])  # fmt: skip
        return lake

    def refused(self, *arguments: object, says: str, code: int = FAILED) -> None:
        """A command that fails with one line and without Spark."""
        real = ("--scratch", self.directory / "nowhere")
        done = self.without_session(*arguments, *real)
        self.assertEqual((done.code, done.out), (code, ""), done)
        self.assertEqual(done.err.count("\n"), 1, done.err)
        self.assertTrue(done.err.startswith("synrepl: error: "), done.err)
        self.assertIn(says, done.err)

    def test_which_database(self) -> None:
        for command in ("land", "check", "replay"):
            self.refused(command, self.lake, says=str(NoDatabaseGiven()), code=USAGE)
        shown = ("--database", "postgresql://u:hush@localhost/x")
        done = self.without_session("land", self.lake, *shown)
        self.assertEqual(done.code, USAGE)
        self.assertIn("holds a password", done.err)
        self.assertNotIn("hush", done.err)
        self.assertFalse(self.lake.exists())

    def test_a_database_that_is_not_there(self) -> None:
        lake = self.begun().path
        away = self.dsn_file(f"postgresql://u:hush@127.0.0.1:{free_port()}/x", "away")
        for command in ("land", "check", "replay"):
            where = ("--database-path", away, "--patience", "0")
            self.refused(command, lake, *where, says="cannot be reached")
        none = self.dsn_file(self.dsn.rpartition("/")[0] + "/no_such_database", "none")
        for command in ("land", "check", "replay"):
            self.refused(command, lake, "--database-path", none, says="waiting will not help")

    async def test_a_database_without_streams(self) -> None:
        empty = self.dsn_file(await fresh_database(self), "empty")
        self.refused("land", self.lake, "--database-path", empty, says="neither synrepl's tables")
        self.refused(
            "check", self.begun().path, "--database-path", empty, says="neither synrepl's tables"
        )

    async def test_a_synapse_is_only_read(self) -> None:
        dsn = self.dsn_file(await foreign_database("1.163.2"), "synapse")
        self.refused(
            "replay", self.begun().path, "--database-path", dsn, says="that of a real Synapse"
        )

    def test_no_lake(self) -> None:
        self.lake.mkdir()
        (self.lake / "letter").touch()
        says = "is no lake: "
        self.refused("land", self.lake, *self.database, says=says)
        self.refused("check", self.lake, *self.database, says=says)
        self.refused("replay", self.lake, *self.database, says=says)
        self.refused("compact", self.lake, says=says)
        self.refused("run", "activity", self.lake, says=says)
        done = self.without_session("status", self.lake)
        self.assertEqual((done.code, done.err.count("\n")), (FAILED, 1))
        self.assertIn(says, done.err)

    def test_refuses_every_url(self) -> None:
        commands = [(name, self.database) for name in ("land", "check", "replay")]
        urls = ("s3a://bucket/lake", "hdfs://host:9000/lake", "gs://b/l", "abfss://c@a/l", "x:y")
        for url in (*urls, f"file://{self.directory}/lake"):
            says = f"{url!r} is a URL ({url.partition(':')[0]}:)"
            for name, database in (*commands, ("compact", ())):
                self.refused(name, url, *database, says=says, code=USAGE)
            self.refused("run", "activity", url, says=says, code=USAGE)
            done = self.without_session("status", url)
            self.assertEqual((done.code, done.out, done.err.count("\n")), (USAGE, "", 1), done)
            self.assertIn(says, done.err)
            self.assertFalse(Path(url.partition("/")[0]).exists())

    def test_the_lake_of_another_database(self) -> None:
        Lake.open_or_create(self.lake, "somebody/else", False)
        for command in ("land", "check"):
            self.refused(command, self.lake, *self.database, says="is of database somebody/else")

    def test_streams_that_are_not_there(self) -> None:
        of_database = "there is no stream 'note' in this database; did you mean 'notes'?"
        self.refused("land", self.lake, *self.database, "--stream", "note", says=of_database)
        self.refused("land", self.lake, *self.database, "--accept-gap", "note", says=of_database)
        self.assertFalse(self.lake.exists())
        lake = self.begun().path
        in_lake = "stream 'note' is not in the lake"
        for command in ("check", "replay"):
            self.refused(command, lake, *self.database, "--stream", "note", says=in_lake)
        self.refused("compact", lake, "--stream", "note", says=in_lake)

    def test_more_than_the_lake_has(self) -> None:
        lake = self.begun().path
        self.refused("replay", lake, *self.database, "--upto", "3", says="and 3 was asked for")

    def test_jobs(self) -> None:
        lake = self.begun().path
        self.refused("run", "activty", lake, says="did you mean 'activity'?")
        self.refused("run", "heat", lake, says="has none of the streams that are wanted")

    def test_settings_of_spark(self) -> None:
        lake = self.begun().path
        bad = {
            ("--master", "yarn"): "'yarn' is no Spark master",
            ("--conf", "spark.x"): str(BadSparkSetting(setting="spark.x")),
            ("--conf", "x=1"): "'x' is no setting of Spark",
            ("--conf", "spark.master=local"): "spark.master cannot be set this way",
            ("--driver-memory", "much"): "no amount of memory",
        }
        for arguments, says in bad.items():
            self.refused("run", "activity", lake, *arguments, says=says, code=USAGE)

    def test_a_busy_lake(self) -> None:
        lake = self.begun()
        says = "another process is changing the lake"
        with lake.write_lock():
            for command in ("land", "check"):
                self.refused(command, lake.path, *self.database, says=says)
            self.refused("compact", lake.path, says=says)

    def test_names_and_ports(self) -> None:
        self.refused("land", self.lake, *self.database, "--name", "a b", says="'a b'", code=USAGE)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.refused(
                "land", self.lake, *self.database, "--metrics-port", port, says="another --metrics"
            )

    async def test_a_process_says_no_more(self) -> None:
        done = await self.run_command("lake", "land", self.lake, *self.database, "--stream", "note")
        self.assertEqual((done.code, done.out), (FAILED, ""))
        self.assertEqual(done.err.count("\n"), 1, done.err)
        self.assertIn("there is no stream 'note'", done.err)
