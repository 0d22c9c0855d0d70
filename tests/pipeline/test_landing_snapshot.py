"""All tasks of a landing's round read whole events at one snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from twisted.internet.threads import blockingCallFromThread, deferToThread

from synrepl.driver.held_snapshot import held_snapshot
from synrepl.pipeline.lake.erase.erasures import Erasures
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land import landing
from synrepl.pipeline.lake.land.landing import Landing
from synrepl.pipeline.lake.land.task import StreamTask, land_part
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from synrepl.pipeline.lake.spark_tasks import run_tasks
from synrepl.pipeline.source.database.sql import Scan
from synrepl.pipeline.source.plan.chunks import ScanChunk, plan_chunks
from synrepl.pipeline.source.reading.chunk_reader import ChunkReader, ReadElsewhere, ReadingAway
from synrepl.pipeline.source.reading.quarantine import read_or_quarantine
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from tests.pipeline.test_landed_states import STREAM, LandedStatesCase
from tests.storage.postgres import reactor

#: A name such as a server gives, of a snapshot that nobody holds.
_GONE = "00000003-0000001B-1"


def _no_session() -> NoReturn:
    raise AssertionError("few rows need no session")


class RoundsOfWholeEvents(LandedStatesCase):
    """Landings whose tasks come one after the other, the last one first."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.lake = Lake.open_or_create(Path(self.mktemp()), self.source.server, False)
        self.tasks = 0

        def backwards(spark: Any, parts: Sequence[bytes], *rest: Any) -> Iterator[dict[str, Any]]:
            return run_tasks(spark, parts[::-1], *rest)

        self.patch(landing, "run_tasks", backwards)

    def between_tasks(self) -> None:
        """Called after the first task."""

    def land(
        self, dsn: str, streams: Mapping[str, StreamTask], erasures: Erasures, part: bytes
    ) -> Iterator[pa.RecordBatch]:
        """A task."""
        if self.tasks == 1:
            self.between_tasks()
        self.tasks += 1
        return land_part(dsn, streams, erasures, part)

    def landed(self, *streams: str) -> list[dict[str, Any]]:
        """Land all that is settled, and return the rows of whole events in the lake."""
        spark = SessionOnDemand(_no_session, 1000)
        rounds = Landing(
            spark, self.lake, self.source, self.dsn, task_rows=30, round_rows=1000, land=self.land
        )
        with self.lake.write_lock():
            for _ in rounds.rounds(streams):
                pass
        if STREAM not in streams:
            return []
        table = self.lake.table(STREAM)
        return [
            row for file in table.files for row in pq.read_table(table.path_of(file)).to_pylist()
        ]

    async def test_a_purge_between_two_tasks_leaves_no_base_without_its_state(self) -> None:
        made = await self.made(14)
        states = await self.stored_states()
        point = PurgePoint.of_stream(max(row["stream_id"] for row in self.rows()) - 20)
        maintenance = RoomMaintenance(self.one.process.database)
        self.between_tasks = lambda: blockingCallFromThread(  # type: ignore[method-assign]
            reactor, maintenance.purge, made.room_id, point, index_check=False
        )
        rows = await deferToThread(self.landed, STREAM)
        self.assertGreater(self.tasks, 2)
        self.assertLess(sum(row["stored"] for row in self.rows()), len(states))
        self.assertEqual(self.states(rows), states)

    async def test_no_snapshot_is_held_for_other_streams(self) -> None:
        await self.made(15, 20)
        self.patch(landing, "held_snapshot", _no_session)
        self.landed("events")
        self.assertEqual(self.lake.table("events").position.linear > 0, True)
        self.assertRaises(TypeError, self.landed, STREAM)

    async def test_a_snapshot_of_another_server_does_not_count(self) -> None:
        await self.made(16, 20)
        self.patch(self.source, "identity_sql", lambda: "SELECT false")
        self.assertRaises(ReadElsewhere, self.landed, STREAM)
        missing = "SELECT EXISTS (SELECT FROM synrepl._not_there)"
        self.patch(self.source, "identity_sql", lambda: missing)
        self.assertRaises(ReadElsewhere, self.landed, STREAM)
        self.assertEqual(self.tasks, 0)


class ChunksAtASnapshot(LandedStatesCase):
    def chunk(self) -> tuple[ScanChunk, pa.Schema]:
        """All rows, and their schema."""
        schema = arrow_schema(self.source.stream_schema(STREAM).columns)
        starts = {STREAM: PositionVector()}
        ends = {STREAM: self.source.observe([STREAM])[STREAM].bound}
        (chunk,) = plan_chunks(self.source, starts, ends, {STREAM: schema.names})
        return chunk, schema

    def found(self, chunk: ScanChunk, schema: pa.Schema) -> list[dict[str, Any]]:
        """The rows of a chunk, read as a task reads them."""
        reader = ChunkReader(self.dsn)
        with reader.reading_together():
            batches = read_or_quarantine(reader, chunk, schema, self.quarantined.extend)
            return [row for batch in batches for row in batch.to_pylist()]

    async def test_have_the_rows_of_that_time(self) -> None:
        await self.made(17, 20)
        chunk, schema = self.chunk()
        before = self.rows()
        with held_snapshot(self.dsn, "tests") as snapshot:
            self.sql("DELETE FROM synrepl._room_events WHERE stream_id = 9")
            self.assertEqual(self.found(chunk.at(snapshot.name), schema), before)
            self.assertNotEqual(self.found(chunk, schema), before)

    async def test_are_not_read_once_nobody_holds_it(self) -> None:
        await self.made(18, 20)
        chunk, schema = self.chunk()
        error = self.assertRaises(ReadingAway, self.found, chunk.at(_GONE), schema)
        self.assertIn("it does not have the snapshot that the driver holds", str(error))
        # A name that is none is no value that does not fit.
        self.assertRaises(ReadingAway, self.found, chunk.at("elsewhere"), schema)
        self.assertEqual(self.quarantined, [])

    async def test_can_be_read_again_after_a_standby_ended_the_snapshot(self) -> None:
        await self.made(26, 5)
        chunk, schema = self.chunk()
        self.sql(
            "CREATE FUNCTION ended() RETURNS bigint LANGUAGE plpgsql AS"
            " $$BEGIN RAISE serialization_failure USING MESSAGE = 'conflict with recovery'; END$$"
        )
        ended = msgspec.structs.replace(chunk, scan=Scan("SELECT ended()", True))
        with held_snapshot(self.dsn, "tests") as snapshot:
            error = self.assertRaises(ReadingAway, self.found, ended.at(snapshot.name), schema)
        self.assertIn("conflict with recovery", str(error))

    async def test_with_bad_values_are_quarantined_and_the_rest_is_read(self) -> None:
        await self.made(19, 20)
        chunk, schema = self.chunk()
        self.sql(
            r"UPDATE synrepl._room_event_json SET raw = '\xff' WHERE event_no ="
            " (SELECT event_no FROM synrepl._room_events WHERE stream_id = 9)"
        )
        with held_snapshot(self.dsn, "tests") as snapshot:
            found = self.found(chunk.at(snapshot.name), schema)
        self.assertEqual([row.stream_id for row in self.quarantined], [9])
        self.assertEqual(len(found), len(self.rows()))
        self.assertGreater(len(found), 15)
