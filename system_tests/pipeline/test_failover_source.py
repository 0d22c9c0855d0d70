"""Streaming queries over a database that fails over and loses commits."""

from __future__ import annotations

from synrepl.pipeline.source.errors import ReadBeforeFailover
from synrepl.storage.incarnations import MARGIN
from synrepl.storage.store import NotConfirmed, OlderServer
from system_tests.pipeline.source_case import SourceCase
from tests.storage.failover import FailoverCase
from tests.storage.samples import NOTES, TAMPERING
from tests.storage.test_failover_sql import PROMOTE

CONFIRM = "SELECT synrepl.confirm()"


class QueryAfterALossyFailover(SourceCase, FailoverCase):
    """A standby is promoted that lacks the facts that a query has read last."""

    async def test_a_query_that_read_lost_facts_ends_and_continues_on_request(self) -> None:
        self.add_writers("notes", "w1")
        self.notes(1, 3)
        await self.disconnect()
        self.notes(4, 5, "w1")
        self.query()
        self.fail_over()
        error = self.ours(self.query, patience_s=0)
        self.assertIsInstance(error, NotConfirmed)
        self.assertIsInstance(self.ours(self.read().count), NotConfirmed)
        self.sql(CONFIRM)
        self.notes(6, 7)
        error = self.ours(self.query)
        self.assertIsInstance(error, ReadBeforeFailover)
        self.assertIn("stream 'notes' above 0", str(error))
        self.assertIn("on_failover=warn", str(error))
        self.assertEqual(self.numbers(), [1, 2, 3, 4, 5])
        self.query(on_failover="warn")
        self.notes(8, 9, "w1")
        self.query()  # no error the second time
        self.assertEqual(self.numbers(), [1, 2, 3, 4, 5, 6, 7, 8, 9])
        self.assertEqual(sorted(row.n for row in self.read().collect()), [1, 2, 3, 6, 7, 8, 9])


class CheckpointsAfterAFailover(SourceCase):
    """Whether a checkpoint is accepted after a failover."""

    def fail_over(self, keep: int) -> None:
        """Promote a server that has only the first ``keep`` notes."""
        on = self.connect()
        self.sql(TAMPERING, on=on)
        self.sql("DELETE FROM synrepl.notes WHERE stream_id > %s", keep, on=on)
        self.sql(PROMOTE)
        self.sql(CONFIRM)

    async def recorded(self, upto: int) -> None:
        store = self.process("master").store
        await store.record_positions(NOTES, upto, {"sql": upto})

    async def test_a_query_that_read_only_surviving_facts_continues(self) -> None:
        self.notes(1, 3)
        await self.recorded(3)
        self.query()
        self.fail_over(keep=3)
        self.notes(4, 5)
        query = self.query(max_rows_per_batch=1)
        self.assertEqual(self.numbers(), [1, 2, 3, 4, 5])
        self.assertIn('"incarnation": 2', str(query.lastProgress["sources"]).replace("'", '"'))
        self.assertGreater(self.read().agg({"stream_id": "max"}).collect()[0][0], MARGIN)

    async def test_a_batch_planned_before_the_failover_is_read_again_only_on_request(self) -> None:
        self.notes(1, 2)
        await self.recorded(2)
        self.query()
        self.notes(3, 4)
        self.query()
        self.uncommit()
        self.fail_over(keep=3)
        error = self.ours(self.query)
        self.assertIsInstance(error, ReadBeforeFailover)
        self.query(on_failover="warn")
        self.assertEqual(self.numbers(), [1, 2, 3])

    async def test_a_checkpoint_of_a_newer_server_is_refused(self) -> None:
        self.notes(1, 1)
        self.fail_over(keep=1)
        self.query()
        self.sql("DELETE FROM synrepl._lost_ranges")
        self.sql("UPDATE synrepl._incarnations SET number = number + 10")
        self.sql("DELETE FROM synrepl._incarnations WHERE number > 11")
        self.sql(
            "UPDATE synrepl._incarnations SET number = 1, timeline = left(pg_walfile_name("
            "pg_current_wal_insert_lsn()), 8)"
        )
        error = self.ours(self.query)
        self.assertIsInstance(error, OlderServer)
