"""Which files of a lake are removed as unused."""

from __future__ import annotations

import os
import time
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.maintenance import remove_unused_files
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.lake.watermarks import Watermarks
from tests.pipeline.synthetic_lake import schema_of


class UnusedFiles(SynchronousTestCase):
    """Files that no table needs, in all folders of a lake."""

    def setUp(self) -> None:
        self.lake = Lake.open_or_create(Path(self.mktemp()).absolute(), "server", False)
        self.tables = {
            stream: self.lake.ensure_table(schema_of(stream)) for stream in ("receipts", "typing")
        }
        Watermarks(self.lake).record("receipts", 1, 0.0)

    def stray(self, folder: LakePath, hours: int) -> Path:
        """A file of this age that belongs to no table."""
        assert isinstance(folder, Path)
        path = folder / f"part-{hours}.parquet"
        path.touch()
        os.utime(path, (time.time() - 3600 * hours - 60,) * 2)
        return path

    def test_are_removed_from_tables_quarantines_and_watermarks(self) -> None:
        quarantine = self.lake.ensure_quarantine(schema_of("typing"))
        folders = [self.tables["receipts"].path, quarantine.path, Watermarks(self.lake).path]
        old, new = ([self.stray(folder, hours) for folder in folders] for hours in (6, 5))
        self.assertEqual(remove_unused_files(self.lake, self.tables), {"receipts": 1, "typing": 0})
        self.assertEqual([path.exists() for path in (*old, *new)], [False] * 3 + [True] * 3)
        self.assertEqual(Watermarks(self.lake).table().num_rows, 1)

    def test_of_watermarks_are_kept_as_long_as_those_of_any_table(self) -> None:
        self.tables["typing"].set_retention(100)
        kept, removed = (self.stray(Watermarks(self.lake).path, hours) for hours in (99, 100))
        remove_unused_files(self.lake, self.tables)
        self.assertEqual((kept.exists(), removed.exists()), (True, False))
