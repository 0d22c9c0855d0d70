"""Tables of a lake in a Hive metastore, by the statements of ``synrepl lake sql``, for engines in other processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from cluster_tests.catalog_servers import hive_metastore, sail_server
from synrepl.pipeline.lake.maintenance import LakeMaintenance
from synrepl.pipeline.lake.named_tables import register_statements
from system_tests.pipeline.landing_case import LandingCase
from system_tests.pipeline.object_store import credentials, shared_store
from system_tests.pipeline.spark_fixture import run_child
from system_tests.pipeline.test_lake_s3 import ObjectStoreCase

SUBJECT = "@alice:example.org"

#: Runs statements over Spark Connect, and prints the rows of the last one.
_STATEMENTS = """
    import json, sys
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    for statement in json.loads(sys.argv[2]):
        rows = spark.sql(statement).collect()
    print(json.dumps([list(row) for row in rows]))
"""

#: The same in a session of Spark itself, which has no connector for Delta tables.
_IN_PLAIN_SPARK = """
    import sys
    from pyspark.sql import SparkSession
    from synrepl.pipeline.session.options import SessionOptions
    from synrepl.pipeline.session.session import open_session
    conf = {"spark.hadoop.hive.metastore.uris": "thrift://" + sys.argv[1],
            "spark.sql.catalogImplementation": "hive"}
    with open_session(SessionOptions("local[1]", driver_memory="512m", conf=conf)) as spark:
        print([row.tableName for row in spark.sql("SHOW TABLES IN matrix").collect()])
        try:
            spark.sql("SELECT * FROM matrix.notes").collect()
        except Exception as error:
            print("DATA_SOURCE_NOT_FOUND" in str(error), "delta" in str(error))
"""


class SailCase(LandingCase):
    """Tables of a lake in Sail, a server of Spark Connect that reads Delta tables."""

    timeout = 600

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.folder = Path(self.mktemp()).absolute()

    def entered(self, server: AbstractContextManager[str]) -> str:
        """A server's address; it ends with the test."""
        address = server.__enter__()
        self.addCleanup(server.__exit__, None, None, None)
        return address

    def rows(self, address: str, *statements: str) -> list[list[object]]:
        """The rows of the last of some statements, which have a session of their own."""
        ended = run_child(_STATEMENTS, f"sc://{address}", json.dumps(statements))
        self.assertEqual(ended.status, 0, ended.errors)
        found: list[list[object]] = json.loads(ended.output)
        return found

    def assert_notes(self, address: str, *statements: str) -> None:
        """Assert that an engine reads the notes of the lake by their name."""
        read = "SELECT stream_id, text FROM matrix.notes ORDER BY stream_id"
        landed = [[row[0], row[3]] for row in self.in_lake("notes")]
        self.assertEqual(self.rows(address, *statements, read), landed)

    def run_maintenance(self) -> int:
        """Land, erase and compact; the number of files that were joined."""
        maintenance = LakeMaintenance(self.spark, self.lake, self.source, self.dsn)
        with self.lake.write_lock():
            return maintenance.run(self.source.streams).compacted_files

    def change_the_lake(self) -> Iterator[None]:
        """Land, compact, and erase; goes on after each."""
        self.notes(1, 3)
        self.append("notes", {"text": SUBJECT, "n": 1})
        self.run_maintenance()
        yield
        joined = 0
        for nth in range(5, 12):
            self.notes(nth, nth)
            joined += self.run_maintenance()
        self.assertGreater(joined, 0)
        self.assertEqual(len(self.in_lake("notes")), 11)
        yield
        self.sql("SELECT synrepl.erase(%s)", SUBJECT)
        self.run_maintenance()
        self.assertIsNone(self.in_lake("notes")[3][3])
        yield


class TablesInAMetastore(SailCase):
    """Registered once in a Hive metastore."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.metastore = self.entered(hive_metastore(self.folder / "metastore"))

    def sail(self, name: str) -> str:
        """The address of a new server of Sail on the metastore."""
        return self.entered(sail_server(self.folder / name, self.metastore))

    def test_every_later_session_reads_the_present_rows(self) -> None:
        first = self.sail("first")
        changes = self.change_the_lake()
        next(changes)
        for _ in range(2):
            self.rows(first, *register_statements(self.lake, "matrix"))
        tables = self.rows(first, "SHOW TABLES IN matrix")
        self.assertEqual(sorted(row[1] for row in tables), self.lake.streams)
        self.assert_notes(first)
        for _ in changes:
            self.assert_notes(first)
        self.assert_notes(self.sail("second"))

    def test_spark_without_a_connector_sees_their_names_and_says_what_it_lacks(self) -> None:
        self.notes(1, 1)
        self.run_maintenance()
        self.rows(self.sail("sail"), *register_statements(self.lake, "matrix"))
        ended = run_child(_IN_PLAIN_SPARK, self.metastore)
        self.assertEqual(ended.status, 0, ended.errors)
        self.assertEqual(ended.output.splitlines(), [str(self.lake.streams), "True True"])


class TablesInAnObjectStore(ObjectStoreCase, SailCase):
    """Registered in each session, because Spark's Hive metastore has no file system of S3."""

    def test_they_have_the_present_rows(self) -> None:
        reachable = credentials(shared_store().port)
        address = self.entered(sail_server(self.folder / "sail", None, **reachable))
        for _ in self.change_the_lake():
            self.assert_notes(address, *register_statements(self.lake, "matrix"))
