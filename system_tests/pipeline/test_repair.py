"""Lost and damaged files of a lake are named, with what they held, and made again."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from synrepl.pipeline.lake.check.check import check
from synrepl.pipeline.lake.check.report import CheckReport
from synrepl.pipeline.lake.compact.compact import compact
from synrepl.pipeline.lake.data_files import DataFile
from synrepl.pipeline.lake.erase.mask import mask
from synrepl.pipeline.lake.erase.pending import pending
from synrepl.pipeline.lake.maintenance import LakeMaintenance
from synrepl.pipeline.lake.repair import (
    NotMadeAgain,
    RepairedFile,
    WriterRows,
    find_damaged,
    repair,
)
from system_tests.pipeline.landing_case import LandingCase
from tests.storage.samples import TAMPERING

SUBJECT = "@alice:example.org"


class RepairedLakes(LandingCase):
    """Each test loses or damages files of a lake."""

    def maintain(self) -> None:
        with self.lake.write_lock():
            LakeMaintenance(self.spark, self.lake, self.source, self.dsn).run(self.source.streams)

    def files(self, stream: str = "notes") -> list[DataFile]:
        return self.lake.table(stream).files

    def lose(self, *files: DataFile, stream: str = "notes") -> None:
        for file in files:
            self.lake.table(stream).path_of(file).unlink()

    def repaired(self, **options: Any) -> list[RepairedFile]:
        with self.lake.write_lock():
            damaged = find_damaged(self.lake, self.lake.streams)
            return repair(self.spark, self.lake, self.source, self.dsn, damaged, **options)

    def checked(self) -> CheckReport:
        known = pending(self.spark, self.source, self.lake).known
        masked = partial(mask, erasures=known)
        return check(self.spark, self.lake, self.source, self.dsn, mask=masked)

    def assert_whole(self) -> None:
        """Nothing is damaged, and the lake equals the database."""
        self.assertEqual(find_damaged(self.lake, self.lake.streams), [])
        report = self.checked()
        self.assertTrue(report.equal, report.problems)

    def test_a_lost_file_is_named_with_its_rows_by_writer_and_made_again(self) -> None:
        self.add_writers("notes", "other")
        self.notes(1, 3)
        self.land()
        self.notes(4, 5)
        self.notes(6, 8, writer="other")
        self.land()
        self.notes(9, 9)
        self.land()
        before, position = self.in_lake("notes"), self.lake.table("notes").position
        lost = self.files()[1]
        self.lose(lost)
        report = self.check_of("notes")
        self.assertIn(f"of its file {lost.name} with 5 rows, tokens 4 to 8, there is no such file",
                      report.not_compared)  # fmt: skip
        (done,) = self.repaired()
        self.assertEqual([(each.file, each.found) for each in done.damaged],
                         [(lost, "no such file")])  # fmt: skip
        self.assertEqual(done.held, (WriterRows("other", 6, 8, 3), WriterRows("sql", 4, 5, 2)))
        self.assertEqual(done.missing, 0)
        self.assertEqual(self.in_lake("notes"), before)
        self.assertEqual(self.lake.table("notes").position, position)
        self.assert_whole()
        self.assertEqual(self.repaired(), [])

    def check_of(self, stream: str) -> Any:
        report = check(self.spark, self.lake, self.source, self.dsn)
        return next(each for each in report.streams if each.stream == stream)

    def test_damage_within_a_file_is_found(self) -> None:
        self.append("notes", *({"text": f"n{n}", "n": n} for n in range(500)))
        self.land()
        (file,) = self.files()
        path = self.lake.table("notes").path_of(file)
        with path.open("r+b") as opened:
            opened.seek(file.size // 4)
            opened.write(b"\xff" * 64)
        (done,) = self.repaired()
        self.assertIn("a file whose rows cannot be read", done.damaged[0].found)
        self.assert_whole()

    def test_a_truncated_file_is_made_again(self) -> None:
        self.notes(1, 9)
        self.land()
        (file,) = self.files()
        os.truncate(self.lake.table("notes").path_of(file), 100)
        (done,) = self.repaired()
        self.assertEqual(done.damaged[0].found, f"100 of its {file.size:,} bytes")
        self.assert_whole()

    def test_rows_that_another_file_has_between_them_are_not_doubled(self) -> None:
        self.add_writers("notes", "late")
        with self.open() as slow:
            self.notes(1, 1, writer="late", on=slow)
            self.notes(2, 3)
            self.land()
            slow.commit()
        self.land()
        self.notes(4, 4)
        self.land()
        self.assertGreater(len(self.files()), 1)
        with self.lake.write_lock():
            compact(self.spark, self.lake, "notes", full=True)
        self.notes(5, 6)
        self.land()
        for lost in self.files():
            self.lose(lost)
            self.repaired()
            self.assert_whole()
        self.lose(*self.files())
        self.repaired()
        self.assert_whole()

    def test_what_was_erased_stays_erased(self) -> None:
        self.append("notes", {"text": SUBJECT, "n": 1}, {"text": "other", "n": 2})
        self.maintain()
        self.sql("SELECT synrepl.erase(%s)", SUBJECT)
        self.maintain()
        self.assertEqual([row[3] for row in self.in_lake("notes")], [None, "other"])
        self.lose(*self.files())
        self.assertEqual(len(self.repaired()), 1)
        self.assertEqual([row[3] for row in self.in_lake("notes")], [None, "other"])
        self.assert_whole()

    def test_a_redaction_in_a_lost_file_is_applied_to_lost_files(self) -> None:
        for row in (
            {"event_id": "$1", "relates_to": "$root", "redacts": None},
            {"event_id": "$2", "relates_to": None, "redacts": "$1"},
        ):
            self.append("backfill", {"room_id": "!r", "type": "m", **row})
            self.maintain()
        self.lose(*self.files("backfill"), stream="backfill")
        self.repaired()
        names = [column.name for column in self.source.stream_schema("backfill").columns]
        at = names.index("relates_to")
        self.assertEqual([row[at] for row in self.in_lake("backfill")], [None, None])
        self.assert_whole()

    def test_rows_that_the_database_lacks_are_refused_unless_accepted(self) -> None:
        self.notes(1, 4)
        self.land()
        (file,) = self.files()
        self.lose(file)
        self.sql(f"{TAMPERING}; DELETE FROM synrepl.notes WHERE stream_id = 2")
        there = set(self.lake.table("notes").path.iterdir())
        error = self.assertRaises(NotMadeAgain, self.repaired)
        self.assertIn("with 4 rows from token 1 to 4, and the database has 3 of them", str(error))
        self.assertEqual(set(self.lake.table("notes").path.iterdir()), there)
        self.assertEqual(self.files(), [file])
        (done,) = self.repaired(accept_missing=True)
        self.assertEqual(done.missing, 1)
        self.assertEqual([row[0] for row in self.in_lake("notes")], [1, 3, 4])
