"""The tables of a lake by name, in a real session of Spark."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError

from synrepl.pipeline import create_views
from synrepl.pipeline.lake.lake import NotInTheLake
from synrepl.pipeline.lake.named_tables import register_statements
from system_tests.pipeline.landing_case import LandingCase


class NamedTables(LandingCase):
    """Views in a session, and statements for a catalog."""

    def count(self) -> int:
        (row,) = self.spark.sql("SELECT count(*) FROM notes").collect()
        return int(row[0])

    def test_views_have_the_rows_at_their_creation(self) -> None:
        self.notes(1, 5)
        self.land()
        self.addCleanup(self.spark.catalog.dropTempView, "notes")
        self.assertEqual(create_views(self.spark, self.lake.path, ["notes"]), ["notes"])
        self.assertEqual(self.count(), 5)
        self.notes(6, 8)
        self.land()
        self.assertEqual(self.count(), 5)
        create_views(self.spark, self.lake.path, ["notes"])
        self.assertEqual(self.count(), 8)

    def test_without_names_every_stream_has_a_view(self) -> None:
        self.land()
        for stream in create_views(self.spark, self.lake.path):
            self.addCleanup(self.spark.catalog.dropTempView, stream)
            self.assertTrue(self.spark.catalog.tableExists(stream))
        self.assertEqual(self.lake.streams, self.source.streams)
        with self.assertRaises(NotInTheLake):
            create_views(self.spark, self.lake.path, ["nothing"])

    def test_spark_reads_the_statements_and_wants_a_connector(self) -> None:
        self.land()
        parser = self.spark._jsparkSession.sessionState().sqlParser()
        schema, *tables = register_statements(self.lake, "spark_catalog.matrix")
        self.assertEqual(len(tables), len(self.lake.streams))
        parser.parsePlan(schema)
        for statement, stream in zip(tables, self.lake.streams, strict=True):
            plan = parser.parsePlan(statement).toString()
            self.assertIn(stream, plan)
            self.assertIn(f"file://{self.lake.table(stream).path}", plan)
            with self.assertRaisesRegex(Py4JJavaError, "DATA_SOURCE_NOT_FOUND.*DELTA"):
                self.spark.sql(statement.replace("`matrix`", "`default`"))
