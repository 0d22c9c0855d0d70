"""Tasks whose folder is not the driver's: their files are not committed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from synrepl.pipeline.lake import data_files, spark_tasks
from synrepl.pipeline.lake.compact import compact as compacting
from synrepl.pipeline.lake.compact.compact import compact
from synrepl.pipeline.lake.data_files import FileNotAsWritten, FolderNotShared
from synrepl.pipeline.lake.erase import erase as erasing
from synrepl.pipeline.lake.erase.erase import ErasureReport, erase
from synrepl.pipeline.lake.erase.pending import pending
from synrepl.pipeline.lake.land import landing as landing
from synrepl.pipeline.lake.land.landing import Vectors
from synrepl.pipeline.lake.land.task import land_part
from synrepl.pipeline.source.reading.chunk_reader import ReadElsewhere
from system_tests.pipeline.landing_case import LandingCase
from system_tests.pipeline.test_landing_synapse import ForeignCase
from tests.storage.postgres import PREPARED

_NAMES = re.compile(r"part-[0-9a-f]+\.parquet")

ALICE = "@alice:example.org"


def on_another_machine(
    lake: Path, other: Path, work: spark_tasks.Work, part: bytes
) -> Iterator[pa.RecordBatch]:
    """Do a task's work where the lake's path leads to another disk, not to the driver's."""
    before = {path.name for path in lake.rglob("*.parquet")}
    done = list(work(part))
    reported = {name for batch in done for name in _NAMES.findall(str(batch.to_pylist()))}
    for path in [each for each in lake.rglob("*.parquet") if each.name in reported - before]:
        path.rename(other / path.name)
    yield from done


def without(folder: Path, work: Any) -> Iterator[pa.RecordBatch]:
    """Do a task's work where a folder of the lake does not exist."""
    away = folder.with_name("away")
    folder.rename(away)
    try:
        yield from list(work())
    finally:
        away.rename(folder)


def without_part(folder: Path, work: spark_tasks.Work, part: bytes) -> Iterator[pa.RecordBatch]:
    """Do the same for a task of one part."""
    return without(folder, partial(work, part))


class ElsewhereCase(LandingCase):
    """A lake whose folder the executors do not share."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.other = Path(self.mktemp()).absolute()
        self.other.mkdir()

    def move_away(self, module: Any) -> Any:
        """Let the tasks of a module write to another disk from now on."""
        real = spark_tasks.run_tasks

        def run_tasks(spark: Any, parts: Any, work: Any, schema: Any, rows: int) -> Any:
            moved = partial(on_another_machine, self.lake.path, self.other, work)
            return real(spark, parts, moved, schema, rows)

        return self.patch(module, "run_tasks", run_tasks)

    def refused(self, call: Any, *args: Any, **more: Any) -> None:
        """Check that a call reports missing files, which are on the other disk."""
        error = self.assertRaises(FileNotAsWritten, call, *args, **more)
        self.assertIn("finds no such file", str(error))
        self.assertTrue(list(self.other.iterdir()))


class FolderNotSharedWithTasks(ElsewhereCase):
    """All operations that commit files."""

    def test_landing_commits_and_acknowledges_nothing_and_lands_it_when_the_folder_is_shared(
        self,
    ) -> None:
        self.notes(1, 5)
        self.land()
        before = {name: self.lake.table(name).position for name in self.lake.streams}
        self.notes(6, 20)
        self.append("backfill", {"event_id": "$e", "room_id": "!r", "type": "t"})
        patch = self.move_away(landing)
        acknowledged: list[Vectors] = []
        self.refused(self.land, acknowledge=acknowledged.append, task_rows=5)
        self.assertEqual(acknowledged, [])
        after = {name: self.lake.table(name).position for name in self.lake.streams}
        self.assertEqual(after, before)
        patch.restore()
        self.land(acknowledge=acknowledged.append)
        self.assertEqual([upto["notes"].linear for upto in acknowledged], [20])
        self.assert_landed()

    def test_compaction_leaves_the_files_as_they_are(self) -> None:
        for first in (1, 4, 7):
            self.notes(first, first + 2)
            self.land()
        before = self.lake.table("notes").files
        self.assertEqual(len(before), 3)
        patch = self.move_away(compacting)
        self.refused(compact, self.spark, self.lake, "notes", full=True)
        self.assertEqual(self.lake.table("notes").files, before)
        self.assert_landed()
        patch.restore()
        self.assertEqual(compact(self.spark, self.lake, "notes", full=True).made, 1)
        self.assert_landed()

    def test_erasure_removes_nothing_and_remains_pending(self) -> None:
        self.append("notes", {"text": ALICE, "n": 1})
        self.append("notes", {"text": "kept", "n": 2})
        self.land()
        before = self.lake.table("notes").files
        self.sql("SELECT synrepl.erase(%s)", ALICE)
        patch = self.move_away(erasing)
        self.refused(self.erase)
        table = self.lake.table("notes")
        self.assertEqual(table.files, before)
        self.assertTrue(all(table.path_of(file).exists() for file in before))
        patch.restore()
        self.assertEqual(self.erase(), ErasureReport(1, 1, 1, 0))
        self.assertEqual([row[3] for row in self.in_lake("notes")], [None, "kept"])

    def erase(self) -> ErasureReport:
        return erase(self.spark, self.lake, pending(self.spark, self.source, self.lake))


def on_a_bad_disk(work: Any) -> Iterator[pa.RecordBatch]:
    """Do a task's work where files lose their ends."""
    with mock.patch.object(data_files, "make_durable", lambda path: os.truncate(path, 8)):
        yield from list(work())


class FilesReadBackByTasks(LandingCase):
    """What a task has written is checked on its machine."""

    def test_a_task_that_cannot_read_back_its_file_fails(self) -> None:
        self.notes(1, 3)
        error = self.assertRaises(FileNotAsWritten, self.land, on_a_bad_disk)
        self.assertIn("the task finds 8 of its", str(error))
        self.assertFalse(self.lake.has_stream("notes"))
        self.land()
        self.assert_landed()


class FolderMissingForTasks(LandingCase):
    """Tasks on a machine that does not have the lake's folder."""

    def test_landing_says_that_the_folder_has_to_be_shared(self) -> None:
        self.notes(1, 3)
        table = self.lake.ensure_table(self.source.stream_schema("notes"))
        error = self.assertRaises(FolderNotShared, self.land, partial(without, table.path))
        self.assertIn(f"in {table.path} cannot be written", str(error))
        self.assertIn("one shared folder", str(error))
        self.land()
        self.assert_landed()

    def test_compaction_and_erasure_say_so_too(self) -> None:
        for n in (1, 2):
            self.append("notes", {"text": ALICE, "n": n})
            self.land()
        self.sql("SELECT synrepl.erase(%s)", ALICE)
        todo = pending(self.spark, self.source, self.lake)
        table = self.lake.table("notes")
        real = spark_tasks.run_tasks

        def run_tasks(spark: Any, parts: Any, work: Any, schema: Any, rows: int) -> Any:
            return real(spark, parts, partial(without_part, table.path, work), schema, rows)

        for module, call in (
            (compacting, partial(compact, self.spark, self.lake, "notes", full=True)),
            (erasing, partial(erase, self.spark, self.lake, todo)),
        ):
            patch = self.patch(module, "run_tasks", run_tasks)
            error = self.assertRaises(FolderNotShared, call)
            self.assertIn("cannot be read", str(error))
            patch.restore()
        self.assert_landed()


def land_from_another_database(other: str, dsn: str, *args: Any) -> Iterator[pa.RecordBatch]:
    """Land a part where the DSN leads to another database, as ``localhost`` does."""
    return land_part(other, *args)


class DsnLeadsElsewhereForTasks(LandingCase):
    """A DSN that leads to another database on the machine of a task."""

    async def test_refuses_what_was_read_from_another_database(self) -> None:
        self.notes(1, 3)
        other = await PREPARED.copy(self)
        landing = self.landing(land=partial(land_from_another_database, other))
        rounds = landing.rounds(self.source.streams)
        error = self.assertRaises(ReadElsewhere, next, rounds)
        self.assertIn("another database", str(error))
        self.assertFalse(self.lake.has_stream("notes"))
        self.land()
        self.assert_landed()


class QuarantineNotShared(ElsewhereCase, ForeignCase):
    """Quarantined rows are in files as well."""

    def test_quarantined_rows_are_not_committed(self) -> None:
        self.execute("UPDATE receipts_linearized SET data = '{bad'")
        patch = self.move_away(landing)
        self.refused(lambda: list(self.landing().rounds(["receipts"])))
        self.assertIsNone(self.lake.quarantine("receipts"))
        self.assertFalse(self.lake.has_stream("receipts"))
        patch.restore()
        (landed,) = self.landing().rounds(["receipts"])
        self.assertGreater(landed.quarantined["receipts"], 10)
        self.assertEqual(len(self.in_quarantine("receipts")), landed.quarantined["receipts"])
