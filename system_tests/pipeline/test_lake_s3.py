"""A lake in an object store: a real server of the S3 protocol, behind a proxy with faults."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import Row

from synrepl.cli.lake.compact import command as compact
from synrepl.pipeline.jobs.catalogue import find_job
from synrepl.pipeline.jobs.run import run_job
from synrepl.pipeline.lake.check.check import check
from synrepl.pipeline.lake.check.report import CheckReport
from synrepl.pipeline.lake.data_files import file_epoch
from synrepl.pipeline.lake.dataframe import has_connector
from synrepl.pipeline.lake.erase import redacted_events
from synrepl.pipeline.lake.erase.erase import ErasureReport
from synrepl.pipeline.lake.erase.mask import mask
from synrepl.pipeline.lake.erase.pending import pending
from synrepl.pipeline.lake.erase.redacted_events import RedactedEvents, RedactedEventsCollector
from synrepl.pipeline.lake.erase.redaction_index import redaction_folder, remove_unused_runs
from synrepl.pipeline.lake.lake import Lake, LakeOfAnother, NotALake
from synrepl.pipeline.lake.land import landing as landings
from synrepl.pipeline.lake.land.landing import Landing, LandingRound
from synrepl.pipeline.lake.log_repair import repair_logs
from synrepl.pipeline.lake.maintenance import LakeMaintenance, MaintenanceReport
from synrepl.pipeline.lake.spark_tasks import run_tasks
from synrepl.pipeline.lake.storage import lake_location, replace_bytes
from synrepl.pipeline.lake.watermarks import Watermarks
from system_tests.pipeline.landing_case import LandingCase
from system_tests.pipeline.object_store import StoreProxy, credentials, shared_store
from system_tests.pipeline.store_proxy import FaultPlan, StoreFault

SUBJECT = "@alice:example.org"


class ObjectStoreCase(LandingCase):
    """A lake in an object store."""

    def new_lake(self) -> Lake:
        store = shared_store()
        self.proxy = StoreProxy(store.port)
        self.addCleanup(self.proxy.close)
        # Spark's Python workers get their variables when a query begins.
        workers: dict[str, str] = self.spark.sparkContext.environment
        for name, value in credentials(self.proxy.port).items():
            os.environ[name] = workers[name] = value
            self.addCleanup(os.environ.pop, name)
            self.addCleanup(workers.pop, name)
        self.url = f"{store.empty_place()}/lake"
        return Lake.open_or_create(self.url, self.source.server, self.source.is_lossy)

    def maintain(self, **options: Any) -> MaintenanceReport:
        """Land, erase and compact."""
        made = LakeMaintenance(self.spark, self.lake, self.source, self.dsn, **options)
        return made.run(self.source.streams)

    def checked(self) -> CheckReport:
        known = pending(self.spark, self.source, self.lake).known
        masked = partial(mask, erasures=known)
        return check(self.spark, self.lake, self.source, self.dsn, mask=masked)

    def after_first_tasks(self, do: Callable[[], object]) -> None:
        """Do something when the first landing has run its tasks, and has committed nothing."""
        real, done = run_tasks, []

        def run_and_do(*args: Any) -> Iterator[Row]:
            rows = list(real(*args))
            if not done:
                done.append(True)
                do()
            yield from rows

        self.patch(landings, "run_tasks", run_and_do)

    def objects(self, stream: str) -> set[str]:
        """The names of the data files of a stream's table."""
        names = [each.name for each in self.lake.table(stream).path.iterdir()]
        return {name for name in names if name.endswith(".parquet")}


class LakesInAnObjectStore(ObjectStoreCase):
    """What a lake in a folder can, one in an object store can."""

    def test_lands_compacts_erases_checks_and_runs_jobs(self) -> None:
        for n in range(1, 5):
            self.append("notes", {"text": SUBJECT if n == 2 else f"n{n}", "n": n})
            report = self.maintain()
        self.assertGreater(report.compacted_files, 1)
        self.assert_landed("notes")
        self.assertGreater(len(self.objects("notes")), 3)  # replaced ones are kept
        self.assertEqual(self.lake.streams, sorted(self.source.streams))

        self.sql("SELECT synrepl.erase(%s)", SUBJECT)
        self.assertEqual(self.maintain().erased.rows, 1)
        table = self.lake.table("notes")
        self.assertEqual(self.objects("notes"), {file.name for file in table.files})
        self.assertEqual([row[3] for row in self.in_lake("notes")], ["n1", None, "n3", "n4"])
        self.assertEqual(self.maintain().erased.subjects, 0)  # it is recorded
        found = self.checked()
        self.assertTrue(found.equal, found.problems)

        self.assertFalse(has_connector(self.spark, "s3a"))
        rows = run_job(self.spark, self.lake, find_job("activity")).collect()
        self.assertEqual(sum(row["rows"] for row in rows if row["stream"] == "notes"), 4)
        self.assertEqual(Lake(self.url.replace("s3:", "s3a:")).path, self.lake.path)

    def test_goes_back_before_a_lost_commit_and_lands_the_rest_again(self) -> None:
        for n in range(1, 4):
            self.notes(n, n)
            self.land()
        log = self.lake.table("notes").path / "_delta_log"
        commits = sorted(each.name for each in log.iterdir() if each.name.endswith(".json"))
        (log / commits[-2]).unlink()
        (done,) = repair_logs(self.lake, ["notes"], lambda stream: 0)
        self.assertEqual(done.damage, (f"commit {len(commits) - 2} is lost",))
        self.assertEqual(done.position.linear, 1)
        self.land()
        self.assert_landed("notes")
        self.assertEqual(repair_logs(self.lake, ["notes"], lambda stream: 0), [])

    def test_quarantines_and_replaces_what_is_there(self) -> None:
        self.assertIsNone(self.lake.quarantine("notes"))
        made = self.lake.ensure_quarantine(self.source.stream_schema("notes"))
        self.assertEqual(made.files, [])
        self.assertIsNotNone(self.lake.quarantine("notes"))

    def test_refuses_urls_that_delta_readers_misread(self) -> None:
        for name in ("a[b]", "a^", "a|b", "a\\b", "a%5Bb", "a%2520b", "a%"):
            url = f"{shared_store().empty_place()}/{name}"
            error = self.assertRaises(NotALake, Lake.open_or_create, url, "one", False)
            self.assertIn("not all that read Delta tables", str(error))

    def test_refuses_urls_of_which_no_object_can_be(self) -> None:
        for name in "a//b", "a%2F%2Fb", "a%E9", "a%0Ab":
            url = f"{shared_store().empty_place()}/{name}"
            for begin in Lake, lambda place: Lake.open_or_create(place, "one", False):
                error = self.assertRaises(NotALake, begin, url)
                self.assertIn("Path", str(error))

    def test_refuses_the_lake_of_another_database_and_other_objects(self) -> None:
        self.assertRaises(LakeOfAnother, Lake.open_or_create, self.url, "another", False)
        other = shared_store().empty_place()
        error = self.assertRaises(NotALake, Lake, other)
        self.assertIn("synrepl-lake.json cannot be read", str(error))
        self.assertNotIn("\x1b", str(error))
        replace_bytes(lake_location(other) / "thesis.tex", b"x")
        error = self.assertRaises(NotALake, Lake.open_or_create, other, "one", False)
        self.assertIn("holds 'thesis.tex'", str(error))

    def test_redactions_in_files_are_found_and_removed_when_no_record_names_them(self) -> None:
        self.patch(redacted_events, "MOST_HELD", 4)
        some = [("!r", f"${number}") for number in range(100)]
        collector = RedactedEventsCollector(redaction_folder(self.lake))
        for each in some:
            collector.add(RedactedEvents.of([each]))
        found = collector.events()
        self.assertTrue(found.runs)
        self.assertTrue(found.contain(*zip(*some, strict=True)).all())
        self.assertFalse(found.contain(["!s"], ["$1"]).any())
        self.assertEqual(remove_unused_runs(self.lake, 1), 0)
        # As if it were an hour later: they are found to be unused, and removed the next time.
        self.assertEqual(remove_unused_runs(self.lake, -1), 0)
        self.assertGreaterEqual(remove_unused_runs(self.lake, -1), len(found.runs))
        left = [path.name for path in redaction_folder(self.lake).iterdir()]
        self.assertEqual([name for name in left if ".digests" in name], [])
        # This process has its own copy.
        self.assertTrue(found.contain(["!r"], ["$1"]).all())


class LandersAtOnce(ObjectStoreCase):
    """Without locks, the commit of one of two landers fails, and it goes on after the other's."""

    def test_each_row_is_landed_once_by_one_of_them(self) -> None:
        self.notes(1, 3)
        self.land()
        self.notes(4, 6)
        other = Landing(self.spark, Lake(self.url), self.source, self.dsn, task_rows=2)
        overtaken: list[LandingRound] = []
        self.after_first_tasks(lambda: overtaken.extend(other.rounds(self.source.streams)))
        mine = self.land()
        self.assertEqual(rows_landed(overtaken), 3)
        self.assertEqual(rows_landed(mine), 0)
        self.assert_landed("notes")
        self.assertGreater(len(self.objects("notes")), len(self.lake.table("notes").files))

    def test_a_commit_between_reading_the_log_and_writing_it_is_no_loss(self) -> None:
        self.notes(1, 3)
        self.land()
        self.notes(4, 6)
        other = Landing(self.spark, Lake(self.url), self.source, self.dsn)
        real, overtaken = DeltaTable.create_write_transaction, []

        def commit(table: DeltaTable, *args: Any, **options: Any) -> None:
            if not overtaken:
                overtaken.append(LandingRound())
                overtaken.extend(other.rounds(self.source.streams))
            real(table, *args, **options)

        self.patch(DeltaTable, "create_write_transaction", commit)
        self.land()
        self.assertEqual(rows_landed(overtaken), 3)
        self.assert_landed("notes")


class ErasuresAmongLanders(ObjectStoreCase):
    """An erasure by one process while another one is landing."""

    def test_rows_read_before_an_erasure_began_are_not_landed_after_it(self) -> None:
        self.append("notes", {"text": "first", "n": 1})
        self.maintain()
        self.append("notes", {"text": SUBJECT, "n": 2})
        others = LakeMaintenance(self.spark, Lake(self.url), self.source, self.dsn)
        erased: list[ErasureReport] = []

        def erase_meanwhile() -> None:
            self.sql("SELECT synrepl.erase(%s)", SUBJECT)
            erased.append(others.run([]).erased)

        # The files of a landing are written, with the subject in them, and not committed.
        self.after_first_tasks(erase_meanwhile)
        report = self.maintain()
        self.assertEqual(erased[0].subjects, 1)
        self.assertEqual(report.rows, {"notes": 1})
        self.assertEqual([row[3] for row in self.in_lake("notes")], ["first", None])
        table = self.lake.table("notes")
        self.assertEqual(table.epoch, 1)
        self.assertEqual({file_epoch(file.name) for file in table.files}, {0, 1})
        self.assertEqual(self.objects("notes"), {file.name for file in table.files})

    def test_files_that_another_process_is_about_to_commit_stay(self) -> None:
        self.append("notes", {"text": SUBJECT, "n": 1})
        self.maintain()
        table = self.lake.table("notes")
        table.begin_erasure()
        name = f"part-1-{'0' * 32}.parquet"
        for stray in (name, f"part-{'0' * 32}.parquet"):
            replace_bytes(table.path / stray, b"PAR1")
        self.assertEqual(table.remove_before_epoch(), 1)
        self.assertEqual(self.objects("notes"), {name, *(file.name for file in table.files)})

    def test_a_compaction_without_retention_leaves_them_too(self) -> None:
        self.append("notes", {"text": "", "n": 1})
        self.maintain()
        strays = [
            path / f"part-{'0' * 32}.parquet"
            for path in (self.lake.table("notes").path, Watermarks(self.lake).path)
        ]
        for stray in strays:
            replace_bytes(stray, b"PAR1")
        ran = CliRunner().invoke(compact, [self.url, "--retention-hours", "0"])
        self.assertEqual((ran.exit_code, ran.stderr), (0, ""))
        for stray in strays:
            self.assertIn(stray, [*stray.parent.iterdir()])


class FaultsOfTheStore(ObjectStoreCase):
    """A store that is slow, busy, or whose answers are lost."""

    def test_random_faults_neither_lose_nor_double_a_row(self) -> None:
        weights = {StoreFault.NONE: 80, StoreFault.BUSY: 8, StoreFault.SLOW: 6, StoreFault.LOST: 6}
        self.proxy.plan(FaultPlan(weights, seed=17))
        for begin in range(1, 26, 5):
            self.notes(begin, begin + 4)
            self.maintain()
        seen = self.proxy.seen()
        self.assertGreater(min(seen.values()), 5, seen)
        self.proxy.plan(FaultPlan())
        self.assert_landed("notes")
        report = self.checked()
        self.assertTrue(report.equal, report.problems)

    def test_a_commit_whose_answer_is_lost_counts_once(self) -> None:
        self.notes(1, 3)
        self.land()
        self.notes(4, 6)
        self.proxy.plan(FaultPlan(lose_once="/streams/notes/_delta_log/"))
        self.land()
        self.assertEqual(self.proxy.seen()[StoreFault.LOST], 1)
        self.assert_landed("notes")
        self.notes(7, 7)
        self.land()
        self.assert_landed("notes")


def rows_landed(rounds: list[LandingRound]) -> int:
    """The number of rows that some rounds landed."""
    return sum(each.rows.total() for each in rounds)
