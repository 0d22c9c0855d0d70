"""The folder of a table that follows a stream."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.views.follow import upsert_into


class FolderOfATable(SynchronousTestCase):
    def test_a_relative_folder_is_that_of_the_caller(self) -> None:
        # A server of Spark Connect calls the function in a temporary folder.
        for path in "table", Path("table"):
            self.assertEqual(upsert_into(path, ["n"]).path, str(Path.cwd() / "table"))

    def test_a_url_stays_as_it_is(self) -> None:
        self.assertEqual(upsert_into("s3://bucket/table", ["n"]).path, "s3://bucket/table")
