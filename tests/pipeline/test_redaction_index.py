"""What is recorded of the redactions in a lake, and when its rows are searched again."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from pyspark.sql import SparkSession
from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.lake.data_files import DataFile, FolderNotShared
from synrepl.pipeline.lake.erase import digest_runs, redacted_events, redaction_index, redactions
from synrepl.pipeline.lake.erase.erasures import RULES
from synrepl.pipeline.lake.erase.redacted_events import RedactedEvents
from synrepl.pipeline.lake.erase.redaction_index import (
    RedactionIndex,
    redaction_folder,
    remove_unused_runs,
)
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.maintenance import remove_unused_files
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from synrepl.positions.vector import PositionVector
from tests.pipeline.synthetic_lake import add, schema_of

RULE = RULES[0]

NOWHERE = PositionVector()


def no_session() -> SparkSession:
    """A session that nothing here may need."""
    raise AssertionError("Spark was started")


class RedactionsOfALake(SynchronousTestCase):
    """Redactions that one process has found need not be found by the next one."""

    def setUp(self) -> None:
        # Everything is worth recording, and hardly anything is kept in memory.
        self.patch(redaction_index, "WORTH_BYTES", 0)
        self.patch(redactions, "MOST_INLINE", 2)
        self.patch(redacted_events, "MOST_HELD", 4)
        self.lake = Lake.open_or_create(Path(self.mktemp()).absolute(), "server", False)
        self.folder = redaction_folder(self.lake)
        assert isinstance(self.folder, Path)
        self.lake.ensure_table(schema_of("events"))
        self.redacted: list[int] = []

    def redact(self, *numbers: int, writer: str = "w", end: PositionVector | None = None) -> None:
        """Land a file with redactions, which have these numbers as tokens, too."""
        self.redacted += numbers
        rows = [
            {
                "stream_id": n,
                "writer": writer,
                "kind": "ev",
                "room_id": "!r",
                "event_id": f"$by{n}",
                "redacts": f"${n}",
            }
            for n in numbers
        ]
        add(self.lake, schema_of("events"), rows, end=end)

    def updated(
        self, since: PositionVector = NOWHERE, index: RedactionIndex | None = None
    ) -> RedactionIndex:
        """An index, that of another process by default, after a search."""
        index = RedactionIndex(self.lake, records=True) if index is None else index
        spark = SessionOnDemand(no_session, 1000)
        index.update(spark, self.lake.table("events"), RULE, since)
        return index

    def assert_found(self, index: RedactionIndex, *new: int) -> None:
        expected = RedactedEvents.of(("!r", f"${n}") for n in self.redacted)
        self.assertEqual(index.redacted("events"), expected)
        self.assertEqual(index.new("events"), RedactedEvents.of(("!r", f"${n}") for n in new))

    def searched(self) -> list[list[str]]:
        """From now on, the names of the files of each search."""
        real, seen = redactions.find_redactions, list[list[str]]()

        def find(spark: object, table: object, files: list[DataFile], *more: object) -> None:
            seen.append([file.name for file in files])
            real(spark, table, files, *more)  # type: ignore[arg-type]

        self.patch(redaction_index, "find_redactions", find)
        return seen

    def test_are_searched_for_once(self) -> None:
        self.redact(*range(1, 11))
        self.assert_found(self.updated(), *range(1, 11))
        searched = self.searched()
        self.redact(11, 12)
        self.assert_found(self.updated(PositionVector({}, 10)), 11, 12)
        self.assert_found(self.updated(PositionVector({}, 12)))
        self.assertEqual(searched, [["part-1.parquet"], []])

    def test_that_tasks_find_come_in_files(self) -> None:
        self.patch(redactions, "BYTES_HERE", -1)
        self.patch(redactions, "TASK_BYTES", 1)
        for begin in range(1, 31, 3):
            self.redact(*range(begin, begin + 3))
        index = self.updated(PositionVector({}, 10))
        self.assert_found(index, *range(11, 31))
        self.assertGreater(sum(run.length for run in index.redacted("events").runs), 25)

    def test_one_process_searches_what_it_has_not(self) -> None:
        self.redact(1, 2)
        index = self.updated()
        searched = self.searched()
        self.redact(3)
        self.assert_found(self.updated(NOWHERE, index), 1, 2, 3)
        self.redact(4)
        self.assert_found(self.updated(PositionVector({}, 3), index), 4)
        self.assert_found(self.updated(PositionVector({}, 4), index))
        self.assertEqual(searched, [["part-1.parquet"], ["part-2.parquet"], []])

    def test_count_as_new_until_they_are_erased(self) -> None:
        self.redact(*range(1, 11))
        self.updated()
        # The first process has died before its erasure.
        self.assert_found(self.updated(PositionVector({}, 3)), *range(4, 11))

    def test_of_a_writer_that_is_behind_the_others_are_found(self) -> None:
        self.redact(1, 2)
        before = PositionVector({"ahead": 20}, 2)
        self.redact(20, writer="ahead", end=before)
        self.updated()
        self.redact(10, writer="behind", end=PositionVector({"ahead": 20}, 10))
        self.assert_found(self.updated(before), 10)

    def test_one_process_searches_a_file_once_also_while_a_writer_is_behind(self) -> None:
        searched = self.searched()
        ends = [PositionVector({"ahead": token}, 1) for token in (20, 30)]
        self.redact(20, writer="ahead", end=ends[0])
        index = self.updated()
        self.assert_found(self.updated(NOWHERE, index), 20)
        self.redact(30, writer="ahead", end=ends[1])
        self.assert_found(self.updated(ends[0], index), 30)
        self.assert_found(self.updated(ends[1], index))
        self.assertEqual(searched, [["part-0.parquet"], [], ["part-1.parquet"], []])
        # Without the record of erasures, everything is new again.
        self.assert_found(self.updated(NOWHERE, index), 20, 30)

    def test_are_all_searched_for_if_positions_cannot_be_compared(self) -> None:
        self.redact(20, writer="one", end=PositionVector({"one": 20}, 0))
        self.updated()
        self.redact(10, writer="other", end=PositionVector({"one": 20, "other": 10}, 0))
        self.assert_found(self.updated(PositionVector({"other": 10}, 0)), 20)

    def test_of_a_stream_that_counts_down_are_found(self) -> None:
        self.lake.ensure_table(schema_of("backfill"))
        index = RedactionIndex(self.lake, records=True)
        for end in range(2, 12, 2):
            rows = [
                {"stream_id": -n, "room_id": "!r", "event_id": f"$by{n}", "redacts": f"${n}"}
                for n in (end, end - 1)
            ]
            add(self.lake, schema_of("backfill"), rows)
            since = PositionVector({}, end - 2)
            for each in index, RedactionIndex(self.lake):
                each.update(
                    SessionOnDemand(no_session, 1000), self.lake.table("backfill"), RULES[1], since
                )
                found, new = each.redacted("backfill"), each.new("backfill")
                self.assertEqual(
                    found, RedactedEvents.of(("!r", f"${n}") for n in range(1, end + 1))
                )
                self.assertEqual(new, RedactedEvents.of(("!r", f"${n}") for n in (end, end - 1)))

    def test_are_found_again_after_the_record_was_deleted(self) -> None:
        self.redact(*range(1, 11))
        index = self.updated(PositionVector({}, 5))
        self.redact(11)
        for path in self.folder.iterdir():
            path.unlink()
        self.assert_found(self.updated(PositionVector({}, 10), index), 11)
        self.assert_found(self.updated(PositionVector({}, 11)))

    def test_of_a_small_lake_are_not_recorded(self) -> None:
        self.patch(redaction_index, "WORTH_BYTES", 1 << 20)
        self.redact(1, 2)
        self.assert_found(self.updated(), 1, 2)
        self.assertFalse(self.folder.exists())

    def test_in_files_are_recorded_however_small_the_lake_is(self) -> None:
        self.patch(redaction_index, "WORTH_BYTES", 1 << 20)
        self.redact(*range(1, 11))
        index = self.updated()
        names = {run.path.name for run in index.redacted("events").runs}
        self.assertTrue(names)
        remove_unused_runs(self.lake, 0)
        self.assertLessEqual(names, {path.name for path in self.folder.iterdir()})

    def test_of_who_only_looks_are_not_recorded(self) -> None:
        self.redact(1, 2)
        self.assert_found(self.updated(NOWHERE, RedactionIndex(self.lake)), 1, 2)
        self.assertFalse(self.folder.exists())

    def test_that_another_process_recorded_take_the_place_of_the_own(self) -> None:
        self.redact(*range(1, 11))
        one, other = self.updated(), self.updated()
        self.redact(*range(11, 31))
        self.updated(NOWHERE, other)
        self.age()
        remove_unused_files(self.lake, {"events": self.lake.table("events")})
        self.assert_found(self.updated(NOWHERE, one), *range(1, 31))

    def test_are_found_again_if_what_is_recorded_cannot_be_used(self) -> None:
        self.redact(*range(1, 11))
        self.updated()
        erased = PositionVector({}, 10)
        record = self.folder / "events.json"
        whole = record.read_bytes()
        for damaged in (
            b"{", whole.replace(b'"version":1', b'"version":2'),
            *(whole.replace(b'"linear":10', b'"linear":%d' % other) for other in (-1, 11, 20)),
        ):  # fmt: skip
            self.assertNotEqual(damaged, whole)
            record.write_bytes(damaged)
            self.assert_found(self.updated(erased))
            self.assertNotEqual(record.read_bytes(), damaged)
        for path in self.folder.iterdir():
            if path != record:
                path.unlink()
        searched = self.searched()
        self.assert_found(self.updated(erased))
        self.assertEqual(searched, [["part-0.parquet"]])

    def test_in_a_record_that_was_changed_are_found_again(self) -> None:
        self.patch(redaction_index, "MOST_INLINE", 4)
        self.redact(1, 2)
        self.updated()
        record = self.folder / "events.json"
        whole = record.read_bytes()
        (digests,) = re.findall(rb'"held":"([^"]+)"', whole)
        record.write_bytes(whole.replace(digests, digests[::-1].replace(b"=", b"") + b"="))
        self.assert_found(self.updated(PositionVector({}, 2)))
        self.assertEqual(record.read_bytes(), whole)

    def test_files_that_no_record_names_are_removed_in_time(self) -> None:
        self.redact(*range(1, 41))
        index = self.updated()
        everything = {path.name for path in self.folder.iterdir()}
        self.assertEqual(remove_unused_runs(self.lake, 1), 0)
        self.age()
        self.assertEqual(remove_unused_runs(self.lake, 1), 0)
        self.age()
        new = self.folder / "new.digests"
        new.touch()
        removed = remove_unused_runs(self.lake, 1)
        left = {path.name for path in self.folder.iterdir()}
        used = {run.path.name for run in index.redacted("events").runs}
        self.assertEqual(left, used | {"events.json", new.name})
        self.assertEqual(removed, len(everything) - len(used) - 1)
        self.assertGreater(removed, 0)

    def test_files_that_were_just_replaced_are_still_there_for_who_has_begun_to_look(self) -> None:
        # Without locks: a check in an object store, while another process lands.
        self.redact(*range(1, 11))
        looks = self.updated().redacted("events")
        self.age()
        remove_unused_runs(self.lake, 1)
        self.redact(*range(11, 101))
        self.updated()
        self.assertEqual(remove_unused_runs(self.lake, 1), 0)
        digest_runs.mapped_digests.cache_clear()
        self.assertTrue(looks.contain(["!r"] * 10, [f"${n}" for n in range(1, 11)]).all())
        self.age()
        self.assertGreater(remove_unused_runs(self.lake, 1), 0)
        digest_runs.mapped_digests.cache_clear()
        self.assertRaises(FolderNotShared, looks.contain, ["!r"], ["$1"])

    def test_files_that_a_record_names_again_are_not_taken_for_replaced(self) -> None:
        self.redact(*range(1, 11))
        index = self.updated()
        names = {run.path.name for run in index.redacted("events").runs}
        record = self.folder / "events.json"
        before = record.read_bytes()
        self.redact(*range(11, 101))
        self.updated()
        after = record.read_bytes()
        self.age()
        remove_unused_runs(self.lake, 1)
        self.age()
        # Of two processes, the slower one wrote the older record last, for a while.
        for written in before, after:
            record.write_bytes(written)
            remove_unused_runs(self.lake, 1)
        self.assertLessEqual(names, {path.name for path in self.folder.iterdir()})

    def age(self) -> None:
        """Make all files look two hours old; a retention of one hour then removes them."""
        self.lake.table("events").set_retention(1)
        for path in self.folder.iterdir():
            os.utime(path, (time.time() - 7200,) * 2)
