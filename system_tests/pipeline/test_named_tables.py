"""The tables of a lake are found by name, in SQL."""

from __future__ import annotations

from pathlib import Path

from synrepl.core.errors import SynreplError
from synrepl.pipeline import register_lake
from synrepl.pipeline.lake.named_tables import NameTaken
from system_tests.pipeline.landing_case import LandingCase
from system_tests.pipeline.spark_fixture import run_child

#: Two sessions with one Hive metastore, in an embedded Derby: the second finds the names of the first.
_SESSION = """
    import sys
    from pyspark.sql import SparkSession
    from synrepl.pipeline import register, register_lake
    lake, folder, number = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[1]").config("spark.driver.memory", "700m")
        .config("spark.ui.enabled", "false").config("spark.sql.warehouse.dir", folder + "/warehouse")
        .config("spark.driver.extraJavaOptions", "-Dderby.system.home=" + folder)
        .config("spark.hadoop.javax.jdo.option.ConnectionURL",
                f"jdbc:derby:;databaseName={folder}/metastore;create=true")
        .enableHiveSupport().getOrCreate()
    )
    if number == "1":
        print(register_lake(spark, lake, "archive"))
    else:
        register(spark)
    print([tuple(row) for row in spark.sql("SELECT n, text FROM archive.notes WHERE n > 1").collect()])
    spark.stop()
"""


class NamedTables(LandingCase):
    """In the shared session, whose catalogue is in memory."""

    def names(self, schema: str) -> list[str]:
        self.addCleanup(lambda: self.spark.sql(f"DROP SCHEMA IF EXISTS {schema} CASCADE"))
        return register_lake(self.spark, str(self.lake.path), schema)

    def count(self, name: str) -> int:
        return int(self.spark.sql(f"SELECT count(*) AS n FROM {name}").collect()[0].n)

    def test_queries_find_the_present_version_by_name(self) -> None:
        self.notes(1, 3)
        self.land()
        found = self.names("named")
        self.assertIn("named.notes", found)
        self.assertEqual(self.count("named.notes"), 3)
        self.assertEqual(self.count("named.backfill"), 0)
        self.notes(4, 5)
        self.land()
        self.assertEqual(self.count("named.notes"), 5)
        rows = self.spark.sql(
            "SELECT n, text, writer FROM named.notes WHERE stream_id > 3 ORDER BY n"
        )
        self.assertEqual(
            [tuple(row) for row in rows.collect()], [(4, "n4", "sql"), (5, "n5", "sql")]
        )
        self.assertEqual(self.names("named"), found)

    def test_a_new_column_is_there_when_the_lake_is_registered_again(self) -> None:
        self.notes(1, 1)
        self.land()
        self.names("widened")
        self.sql("ALTER TABLE synrepl.notes ADD COLUMN more text")
        self.notes(2, 2)
        self.land()
        self.assertEqual(self.count("widened.notes"), 2)
        self.names("widened")
        self.assertIn("more", self.spark.table("widened.notes").columns)
        self.assertEqual(self.count("widened.notes"), 2)

    def test_a_name_of_another_table_is_refused(self) -> None:
        self.notes(1, 1)
        self.land()
        self.spark.sql("CREATE SCHEMA taken")
        self.spark.sql("CREATE TABLE taken.notes (a INT) USING parquet")
        error = self.assertRaises(NameTaken, self.names, "taken")
        self.assertIn("a table `taken`.`notes`", str(error))
        self.assertEqual(self.spark.table("taken.notes").columns, ["a"])
        self.assertEqual(self.spark.sql("SHOW TABLES IN taken").count(), 1)

    def test_a_folder_that_is_no_lake_is_refused(self) -> None:
        self.assertRaises(SynreplError, register_lake, self.spark, self.mktemp())

    def test_a_hive_metastore_keeps_the_names(self) -> None:
        self.notes(1, 3)
        self.land()
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        rows = "[(2, 'n2'), (3, 'n3')]"
        for number in "1", "2":
            done = run_child(_SESSION, str(self.lake.path), str(folder), number)
            self.assertEqual(done.output.splitlines()[-1:], [rows], done.errors[-2000:])
