"""Checks of few rows, which need no Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from synrepl.pipeline.lake.check.check import check
from synrepl.pipeline.lake.check.report import CheckReport, Outcome
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from tests.pipeline.test_small_landings import (
    ROWS_HERE,
    SessionAskedFor,
    SmallLakeCase,
    no_session,
)


class SmallChecks(SmallLakeCase):
    """A lake with a few rows in each of two files."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        for texts in ("one", "two"), ("three",):
            self.append(*texts)
            self.run_once()

    def checked(self) -> CheckReport:
        """Compare the lake with the database, as ``synrepl lake check`` does."""
        spark = SessionOnDemand(no_session, ROWS_HERE)
        return check(spark, self.lake, self.source, self.dsn)

    def first_file(self) -> Path:
        """The path of the first file."""
        table = self.lake.table("notes")
        path = table.path_of(min(table.files, key=lambda file: file.low))
        assert isinstance(path, Path)
        return path

    def test_need_no_session_where_nothing_differs(self) -> None:
        (report,) = self.checked().streams
        self.assertEqual((report.outcome, report.lake_rows), (Outcome.EQUAL, 3))

    def test_call_for_one_where_a_row_is_missing(self) -> None:
        self.sql("ALTER TABLE synrepl.notes DISABLE TRIGGER USER")
        self.sql("DELETE FROM synrepl.notes WHERE text = 'three'")
        self.assertRaises(SessionAskedFor, self.checked)

    def test_name_a_file_whose_rows_cannot_be_read(self) -> None:
        path = self.first_file()
        places = pq.read_metadata(path).row_group(0).column(0)
        begin = places.data_page_offset
        whole = path.read_bytes()
        path.write_bytes(whole[:begin] + b"\xff" * 20 + whole[begin + 20 :])
        report = self.checked()
        self.assertFalse(report.equal)
        (problem,) = report.problems
        self.assertIn("stream 'notes' was not compared", problem)
        self.assertIn(str(path), problem)
        self.assertIn("is damaged", problem)
        self.assertIn("'synrepl lake repair' makes it again", problem)

    def test_name_a_file_that_is_shorter_than_it_was(self) -> None:
        path = self.first_file()
        path.write_bytes(path.read_bytes()[:-20])
        (problem,) = self.checked().problems
        self.assertIn("stream 'notes' was not compared", problem)
        self.assertIn(path.name, problem)
        self.assertIn("'synrepl lake repair' makes it again", problem)

    def test_name_a_lost_file(self) -> None:
        path = self.first_file()
        path.unlink()
        (problem,) = self.checked().problems
        self.assertIn(path.name, problem)
