"""Two processes that land the same streams, as in an object store, which has no locks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import psycopg2
import pyarrow as pa
from twisted.trial.unittest import TestCase

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.erase.erasures import Erasures
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land.landing import Landing
from synrepl.pipeline.lake.land.task import StreamTask, land_part
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from synrepl.pipeline.lake.table import LandedElsewhere
from synrepl.pipeline.source.database.synapse_database import SynapseDatabase
from tests.pipeline.test_small_landings import no_session
from tests.storage.foreign_databases import foreign_database

#: Long enough for a stream of Synapse to settle, in seconds.
SETTLE_TIMEOUT_S = 12.0


class TwoLanders(TestCase):
    timeout = 60

    async def test_quarantine_rows_once(self) -> None:
        dsn = await foreign_database("1.20.1", self)
        with (
            closing(psycopg2.connect(dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("UPDATE receipts_linearized SET data = '{bad'")
        path = Path(self.mktemp())

        def land(when_read: Callable[[], object]) -> Lake:
            """Land in a new process; ``when_read`` is called between reading and committing."""
            source = SynapseDatabase(BlockingDatabase(dsn, "tests"))
            self.addCleanup(source.close)
            lake = Lake.open_or_create(path, source.server, source.is_lossy)

            def land_and_call(
                dsn: str, tasks: Mapping[str, StreamTask], erasures: Erasures, part: bytes
            ) -> Iterator[pa.RecordBatch]:
                found = list(land_part(dsn, tasks, erasures, part))
                if found:
                    when_read()
                yield from found

            spark = SessionOnDemand(no_session, 10**6)
            landing = Landing(spark, lake, source, dsn, land=land_and_call)
            list(landing.rounds(["receipts"], SETTLE_TIMEOUT_S))
            return lake

        lakes: list[Lake] = []
        self.assertRaises(LandedElsewhere, land, lambda: lakes.append(land(lambda: None)))
        quarantine = lakes[0].quarantine("receipts")
        assert quarantine is not None
        self.assertEqual(len(quarantine.files), 1)
