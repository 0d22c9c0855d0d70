"""synrepl's own tables as a source, on a real standby, where locks cannot be observed (R5)."""

from __future__ import annotations

from synrepl.driver.blocking import BlockingDatabase
from synrepl.driver.held_snapshot import held_snapshot
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.pipeline.source.plan.chunks import ScanChunk, plan_chunks
from synrepl.pipeline.source.reading.chunk_reader import ChunkReader, ReadElsewhere
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.storage.foreign.bounds import SafeBound
from tests.driver.embedded_server import query_one
from tests.storage.failover import TwoServers
from tests.storage.postgres import PostgresCase, prepare
from tests.storage.samples import NOTES


class StandbyCase(PostgresCase):
    """A primary and its standby."""

    timeout = 180

    async def setUp(self) -> None:  # type: ignore[override]
        servers = TwoServers(self)
        self.primary, self.standby = servers.primary, servers.standby
        self.has_caught_up = servers.has_caught_up
        self.dsn = self.primary.dsn
        await prepare(self.dsn)
        await self.caught_up()  # the standby has the tables

    async def caught_up(self) -> None:
        """Wait until the standby has everything that the primary has."""
        await self.until(self.has_caught_up)


class StandbyBounds(StandbyCase):
    """The safe bound of a reader of the standby."""

    async def test_only_recorded_positions_are_safe_on_a_standby(self) -> None:
        source = SynreplDatabase(BlockingDatabase(self.standby.dsn, "tests"))
        self.addCleanup(source.close)

        def look() -> SafeBound:
            return source.observe(["notes"])["notes"]

        append = "SELECT synrepl.append('notes', %s)"
        self.sql(append, '[{"text": "a"}]')
        open_one = self.connect()
        open_one.autocommit = False
        self.sql(append, '[{"text": "late"}]', on=open_one)
        self.sql(append, '[{"text": "c"}]')
        await self.process("master").store.record_positions(NOTES, 1, {"sql": 1})
        await self.caught_up()
        # On the standby, the gap of the open transaction looks like one that will never be filled.
        for _ in range(3):
            self.assertEqual((look().bound.linear, look().bound["sql"]), (1, 1))
        open_one.commit()
        await self.process("master").store.record_positions(NOTES, 3, {"sql": 3})
        await self.caught_up()
        bound = look().bound
        self.assertEqual((bound.linear, bound["sql"]), (3, 3))
        stream_schema = source.stream_schema("notes")
        names = [column.name for column in stream_schema.columns]
        (chunk,) = plan_chunks(source, {}, {"notes": bound}, {"notes": names})
        reader, schema = ChunkReader(self.standby.dsn), arrow_schema(stream_schema.columns)

        def texts(chunk: ScanChunk) -> list[str]:
            batches = reader.batches(chunk, schema)
            return [text for batch in batches for text in batch.column("text").to_pylist()]

        self.assertEqual(texts(chunk), ["a", "late", "c"])
        # A standby exports snapshots, too.
        with held_snapshot(self.standby.dsn, "tests") as snapshot:
            self.assertEqual(texts(chunk.at(snapshot.name)), ["a", "late", "c"])


class StandbyReaders(StandbyCase):
    """A task connects to a standby, although the driver connected to the primary."""

    async def test_refuses_a_standby_that_is_behind_the_observation(self) -> None:
        source = SynreplDatabase(BlockingDatabase(self.dsn, "tests"))
        self.addCleanup(source.close)
        query_one(self.standby.dsn, "SELECT pg_wal_replay_pause()")
        self.sql("SELECT synrepl.append('notes', %s)", '[{"text": "a"}]')
        bound = source.observe(["notes"])["notes"].bound
        self.assertEqual(bound["sql"], 1)
        stream_schema = source.stream_schema("notes")
        names = [column.name for column in stream_schema.columns]
        (chunk,) = plan_chunks(source, {}, {"notes": bound}, {"notes": names})

        def texts() -> list[str]:
            batches = ChunkReader(self.standby.dsn).batches(
                chunk, arrow_schema(stream_schema.columns)
            )
            return [text for batch in batches for text in batch.column("text").to_pylist()]

        error = self.assertRaises(ReadElsewhere, texts)
        self.assertIn("a standby that is behind it", str(error))
        query_one(self.standby.dsn, "SELECT pg_wal_replay_resume()")
        await self.caught_up()
        self.assertEqual(texts(), ["a"])
