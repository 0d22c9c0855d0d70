"""Landings of few rows, which need no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pyarrow.parquet as pq

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.maintenance import LakeMaintenance, MaintenanceReport
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from tests.storage.postgres import PostgresCase

ALICE = "@alice:example.org"

ROWS_HERE = 10


class SessionAskedFor(Exception):
    """A session was called for."""


def no_session() -> NoReturn:
    raise SessionAskedFor


class SmallLandings(PostgresCase):
    """Maintenance of a lake with a session on demand that nobody should call for."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.source = SynreplDatabase(BlockingDatabase(self.dsn, "tests"))
        self.addCleanup(self.source.close)
        self.lake = Lake.open_or_create(Path(self.mktemp()), self.source.server, False)
        spark = SessionOnDemand(no_session, ROWS_HERE)
        self.maintenance = LakeMaintenance(spark, self.lake, self.source, self.dsn)

    def append(self, *texts: str) -> None:
        for text in texts:
            self.sql(
                "SELECT synrepl.append('notes', jsonb_build_array(jsonb_build_object('text', %s::text,"
                " 'n', 1)), 'sql')",
                text,
            )

    def run_once(self) -> MaintenanceReport:
        with self.lake.write_lock():
            return self.maintenance.run(["notes"])

    def texts(self) -> list[str | None]:
        table = self.lake.table("notes")
        files = sorted(table.files, key=lambda file: file.low)
        return [
            text
            for file in files
            for text in pq.read_table(table.path_of(file)).column("text").to_pylist()
        ]

    def test_few_rows_are_landed_without_spark(self) -> None:
        self.append("one", "two")
        self.assertEqual(self.run_once().rows, {"notes": 2})
        self.append("three")
        self.assertEqual(self.run_once().rows, {"notes": 1})
        self.assertEqual(self.texts(), ["one", "two", "three"])

    def test_cells_are_erased_without_spark(self) -> None:
        self.append("one", ALICE)
        self.run_once()
        self.sql("SELECT synrepl.erase(%s)", ALICE)
        report = self.run_once()
        self.assertEqual((report.erased.files, report.erased.rows), (1, 1))
        self.assertEqual(self.texts(), ["one", None])

    def test_small_files_are_compacted_without_spark(self) -> None:
        for text in "abcdefgh":
            self.append(text)
            self.run_once()
        self.assertEqual(len(self.texts()), 8)
        self.assertLess(len(self.lake.table("notes").files), 8)

    def test_spark_is_called_for_to_land_more_rows(self) -> None:
        self.append(*map(str, range(ROWS_HERE + 1)))
        self.assertRaises(SessionAskedFor, self.run_once)
        self.assertEqual(self.texts(), [])

    def test_rows_of_all_streams_count(self) -> None:
        """Several streams are landed together."""
        half = ROWS_HERE // 2 + 1
        self.append(*map(str, range(half)))
        for number in range(half):
            self.sql(
                "SELECT synrepl.append('everything', jsonb_build_array(jsonb_build_object('text', '',"
                " 'whole', %s, 'flag', true, 'real', 1.5, 'doc', '{}'::jsonb, 'list', '[]'::jsonb)),"
                " 'sql')",
                number,
            )
        with self.lake.write_lock():
            self.assertRaises(
                SessionAskedFor, self.maintenance.run, ["everything", "notes"], settle_timeout_s=0.0
            )
