"""What a query does whose database has failed over."""

from __future__ import annotations

import warnings

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.pipeline.source.errors import ReadBeforeFailover
from synrepl.pipeline.source.failover_check import OnFailover, check_failovers
from synrepl.pipeline.source.plan.offset import Offset
from synrepl.positions.vector import PositionVector
from tests.storage.postgres import PostgresCase
from tests.storage.test_failover_sql import PROMOTE


class QueriesAfterAFailover(PostgresCase):
    """The query has read facts of which no record proves that they survived."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.sql("SELECT synrepl.append('notes', '[{\"text\": \"a\", \"n\": 1}]', 'sql')")
        self.sql(PROMOTE)
        self.sql("SELECT synrepl.confirm()")
        self.source = SynreplDatabase(BlockingDatabase(self.dsn, "tests"))
        self.addCleanup(self.source.close)
        self.source.observe(["notes"])
        self.offset = Offset(self.source.server, {"notes": PositionVector({"sql": 1}, 1)})

    def test_end_by_default(self) -> None:
        error = self.assertRaises(
            ReadBeforeFailover, check_failovers, self.offset, self.source, OnFailover.REFUSE
        )
        self.assertIn("stream 'notes' above 0~sql.0 up to 1~sql.1", str(error))

    def test_go_on_with_one_message_if_they_are_told_to(self) -> None:
        with self.assertLogs("synrepl") as logged, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            check_failovers(self.offset, self.source, OnFailover.WARN)
        (line,) = logged.output
        self.assertIn(
            "facts that the query has read: stream 'notes' above 0~sql.0 up to 1~sql.1", line
        )
        self.assertEqual(warned, [])
