"""A lake of a database that fails over and loses commits, with real servers and Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.check.check import EVERYTHING, Extent, check
from synrepl.pipeline.lake.check.report import CheckReport, Outcome
from synrepl.pipeline.lake.land.landing import FailedOver, LandingRound
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.storage.incarnations import MARGIN
from synrepl.storage.store import NotConfirmed, OlderServer
from system_tests.pipeline.landing_case import LandingCase
from tests.driver.embedded_server import query_one
from tests.storage.failover import FailoverCase
from tests.storage.samples import NOTES, TAMPERING
from tests.storage.test_failover_sql import PROMOTE

CONFIRM = "SELECT synrepl.confirm()"


def _failing_over(
    dsn: str, work: Callable[[], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Fail over before a task has read anything."""
    query_one(dsn, PROMOTE)
    query_one(dsn, CONFIRM)
    return work()


class FailoverDuringALanding(LandingCase):
    """A failover between the driver's observation and a task's read."""

    async def test_rows_read_from_another_server_than_observed_are_not_landed(self) -> None:
        self.notes(1, 3)
        self.assertRaises(FailedOver, self.land, partial(_failing_over, self.dsn))
        self.assertFalse(self.lake.has_stream("notes"))
        self.land()
        self.assert_landed("notes")


class LandingAfterAFailover(LandingCase, FailoverCase):
    """Landing after a failover that may have lost landed facts."""

    timeout = 300

    async def begin(self) -> None:
        """Land facts that survive, n1 to n5; then write facts that do not, n6 to n9."""
        self.add_writers("notes", "w1", "w2")
        self.notes(1, 4)
        self.notes(5, 5, "w1")
        await self.process("master").store.record_positions(NOTES, 5, {"sql": 4, "w1": 5})
        self.land()
        await self.disconnect()
        self.notes(6, 7, "w1")
        self.notes(8, 9, "w2")
        self.append("everything", {"text": "lost", "whole": 1, "flag": True, "real": 0.5,
                                   "doc": "{}", "list": []})  # fmt: skip

    def lost_of(self, landed: list[LandingRound]) -> dict[str, list[tuple[str, int]]]:
        """The writers of lost rows with the number of rows, by stream."""
        found: dict[str, list[tuple[str, int]]] = {}
        for each in landed:
            for stream, rows in each.lost.items():
                found.setdefault(stream, []).extend((lost.writer, lost.rows) for lost in rows)
        return found

    def checked(self, extent: Extent = EVERYTHING) -> CheckReport:
        return check(self.spark, self.lake, self.source, self.dsn, extent)

    def texts(self) -> list[object]:
        return [row[3] for row in self.in_lake("notes")]

    async def test_landing_waits_for_confirmation_and_reports_lost_rows_once(self) -> None:
        await self.begin()
        self.land()
        before = {stream: self.lake.table(stream).position for stream in self.lake.streams}
        self.assertEqual(len(self.texts()), 9)
        self.fail_over()
        # Nothing is landed, lost or equal according to an unconfirmed server.
        self.assertRaises(NotConfirmed, self.land)
        self.assertRaises(NotConfirmed, self.checked)
        after = {stream: self.lake.table(stream).position for stream in self.lake.streams}
        self.assertEqual(after, before)

        self.sql(CONFIRM)
        self.notes(10, 12)
        self.notes(13, 14, "w2")
        landed = self.land(task_rows=2)
        self.assertEqual(
            self.lost_of(landed), {"notes": [("w1", 2), ("w2", 2)], "everything": [("sql", 1)]}
        )
        self.assertEqual(self.texts(), [f"n{n}" for n in range(1, 15)])
        self.assertGreater(self.lake.table("notes").position.linear, MARGIN)
        (w1, w2) = landed[0].lost["notes"]
        self.assertEqual((w1.incarnation, w1.after, w1.upto), (2, 5, 7))
        self.assertEqual((w2.incarnation, w2.after, w2.upto), (2, 7, 9))
        # Lost rows are reported only once.
        self.notes(15, 15)
        landed = self.land()
        self.assertEqual(self.lost_of(landed), {})
        self.assertEqual(sum(each.rows["notes"] for each in landed), 1)

        report = self.checked()
        self.assertEqual((report.outcome, report.equal), (Outcome.LOST, False))
        notes = next(each for each in report.streams if each.stream == "notes")
        self.assertEqual((notes.source_rows, notes.lake_rows), (11, 15))
        self.assertEqual((notes.differences, notes.examples), ((), ()))
        self.assertEqual([(each.writer, each.rows) for each in notes.lost], [("w1", 2), ("w2", 2)])
        self.assertIn(
            "stream 'notes', 2 rows of writer 'w1', tokens 6 to 7, lost by the database in the"
            " failover to incarnation 2",
            report.problems,
        )

    async def test_surviving_facts_without_proof_are_landed_once_and_not_lost(self) -> None:
        self.add_writers("notes", "w1")
        self.notes(1, 3)
        self.land()
        self.notes(4, 5, "w1")
        await self.disconnect()
        self.notes(6, 6, "w1")
        self.fail_over()
        self.sql(CONFIRM)
        self.notes(7, 7)
        self.assertEqual(self.lost_of(self.land()), {})
        self.assertEqual(self.texts(), ["n1", "n2", "n3", "n4", "n5", "n7"])
        self.assert_landed("notes")
        self.assertEqual(self.checked().outcome, Outcome.EQUAL)

    async def test_a_check_before_the_next_landing_reports_lost_rows(self) -> None:
        await self.begin()
        self.land()
        self.fail_over()
        self.sql(CONFIRM)
        # Other differences are still reported as such.
        on = self.connect()
        self.sql(TAMPERING, on=on)
        self.sql("DELETE FROM synrepl.notes WHERE text = 'n2'", on=on)
        self.sql("UPDATE synrepl.notes SET n = 0 WHERE text = 'n3'", on=on)
        (notes,) = self.checked(Extent(["notes"])).streams
        self.assertIs(notes.outcome, Outcome.DIFFERENT)
        (difference,) = notes.differences
        self.assertEqual((difference.only_in_lake, difference.changed), (1, 1))
        self.assertEqual(sum(each.rows for each in notes.lost), 4)

    async def test_an_older_server_is_refused(self) -> None:
        await self.begin()
        self.land()
        self.fail_over()
        self.sql(CONFIRM)
        self.land()
        self.servers.standby.stop()
        self.servers.primary.start()
        self.notes(10, 10)
        for each in (self.land, self.checked):
            error = self.assertRaises(OlderServer, each)
            self.assertIn("from before a failover", str(error))
        # A process that has not seen the newer server refuses it, too, because the lake has seen it.
        self.source = self.opened(SynreplDatabase(BlockingDatabase(self.dsn, "tests")))
        for each in (self.land, self.checked):
            self.assertRaises(OlderServer, each)
