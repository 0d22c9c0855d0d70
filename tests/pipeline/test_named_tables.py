"""SQL that registers the tables of a lake, without Spark."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.lake.dataframe import hadoop_url
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.named_tables import BadSchemaName, register_statements
from synrepl.pipeline.lake.storage import ObjectPath
from tests.pipeline.synthetic_lake import add, schema_of


class RegisterStatements(SynchronousTestCase):
    """Names and places of the tables."""

    def lake(self, name: str = "lake") -> Lake:
        """A lake with the streams ``caches`` and ``events``, which have no rows."""
        lake = Lake.open_or_create(Path(self.mktemp()) / name, "server", is_lossy=False)
        for stream in "events", "caches":
            add(lake, schema_of(stream), [])
        return lake

    def test_each_stream_is_a_table_at_its_place(self) -> None:
        lake = self.lake()
        self.assertEqual(
            register_statements(lake, "matrix"),
            [
                "CREATE SCHEMA IF NOT EXISTS `matrix`",
                "CREATE TABLE IF NOT EXISTS `matrix`.`caches` USING DELTA"
                f" LOCATION 'file://{lake.path}/streams/caches'",
                "CREATE TABLE IF NOT EXISTS `matrix`.`events` USING DELTA"
                f" LOCATION 'file://{lake.path}/streams/events'",
            ],
        )

    def test_a_schema_may_be_in_a_catalog(self) -> None:
        first, second, _ = register_statements(self.lake(), "main.matrix")
        self.assertEqual(first, "CREATE SCHEMA IF NOT EXISTS `main`.`matrix`")
        self.assertIn(" `main`.`matrix`.`caches` ", second)

    def test_a_place_cannot_end_its_literal(self) -> None:
        _, statement, _ = register_statements(self.lake("it's"), "matrix")
        self.assertTrue(statement.endswith("it\\'s/streams/caches'"), statement)

    def test_other_names_are_refused(self) -> None:
        for name in "", "a.b.c", "a`b", "a b", "a;DROP", "x" * 101 + "-":
            with self.assertRaises(BadSchemaName):
                register_statements(self.lake(), name)

    def test_objects_have_the_scheme_of_hadoop_and_no_escapes(self) -> None:
        urls = {
            "s3://b/lake": "s3a://b/lake/x",
            "gs://b/lake": "gs://b/lake/x",
            "s3://b/a%20lake": "s3a://b/a lake/x",
        }
        self.assertEqual({url: hadoop_url(ObjectPath(url, "x")) for url in urls}, urls)
