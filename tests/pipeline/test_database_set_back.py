"""A database that is set back on the same timeline: an earlier copy of it, or of one of its sequences."""

from __future__ import annotations

from pathlib import Path

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land.landing import DatabaseSetBack, Landing
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.pipeline.source.errors import ReadBeyondDatabase
from synrepl.pipeline.source.options import parse_source_options
from synrepl.pipeline.source.planner import Planner
from synrepl.pipeline.source.streams import read_schema_of
from synrepl.storage.foreign.release import recognise
from synrepl.storage.launch.postgres import PostgresServer
from synrepl.testing.standby import copy_data_dir
from tests.driver.embedded_server import new_data_dir, query_one
from tests.pipeline.test_small_landings import ROWS_HERE, SmallLakeCase, no_session
from tests.pipeline.test_synapse_database import ForeignCase
from tests.storage.failover import FailoverCase
from tests.storage.foreign_databases import foreign_database
from tests.storage.postgres import PostgresCase, prepare
from tests.storage.samples import NOTES

APPEND = "SELECT synrepl.append('notes', '[{\"text\": \"a\", \"n\": 1}]', 'sql')"


def land(lake: Lake, source: SourceDatabase, dsn: str, stream: str = "notes") -> int:
    """Land a stream without Spark; returns the position of the lake."""
    with lake.write_lock():
        for _ in Landing(SessionOnDemand(no_session, ROWS_HERE), lake, source, dsn).rounds(
            [stream]
        ):
            pass
    return lake.table(stream).position.linear


class SequencesSetBack(SmallLakeCase):
    """A sequence of synrepl's is behind what was read."""

    def land(self, stream: str = "notes") -> int:
        return land(self.lake, self.source, self.dsn, stream)

    def set_back(self, token: int) -> None:
        self.sql("SELECT setval('synrepl._notes_seq', %s)", token)

    def other_source(self) -> SynreplDatabase:
        """A source as another process has it."""
        source = SynreplDatabase(BlockingDatabase(self.dsn, "tests"))
        self.addCleanup(source.close)
        return source

    def test_are_refused_before_anything_is_landed(self) -> None:
        self.append("one", "two")
        self.set_back(5)  # three were given out to transactions that were rolled back
        self.assertEqual(self.land(), 5)
        self.set_back(2)
        self.append("three")
        for source in self.source, self.other_source():
            error = self.assertRaises(DatabaseSetBack, land, self.lake, source, self.dsn)
            self.assertIn("stream 'notes' up to 3, which was read up to 5. It is", str(error))
        self.assertEqual(self.texts(), ["one", "two"])
        self.set_back(5)
        self.append("four")
        self.assertEqual(self.land(), 6)
        self.assertEqual(self.texts(), ["one", "two", "four"])

    def test_of_streams_that_count_down_are_refused(self) -> None:
        self.sql("SELECT setval('synrepl._backfill_seq', -7)")
        self.assertEqual(self.land("backfill"), 7)
        self.assertEqual(self.land("backfill"), 7)
        self.sql("SELECT setval('synrepl._backfill_seq', -6)")
        error = self.assertRaises(DatabaseSetBack, self.land, "backfill")
        self.assertIn("stream 'backfill' up to 6, which was read up to 7", str(error))

    def test_behind_their_table_are_not_refused(self) -> None:
        self.append("one", "two", "three")
        self.land()
        self.set_back(1)  # a writer moves it forward before it takes a token
        self.assertEqual(self.land(), 3)

    async def test_behind_a_recorded_position_are_not_refused(self) -> None:
        self.append("one")
        self.set_back(4)
        self.land()
        await self.process("master").store.record_positions(NOTES, 1, {"sql": 4})
        self.set_back(1)
        self.assertEqual(self.land(), 4)

    def test_are_no_concern_of_a_lake_that_another_process_has_landed_into(self) -> None:
        self.append("one")
        late = self.source.observe(["notes"])
        self.append("two")
        land(self.lake, self.other_source(), self.dsn)
        landing = Landing(SessionOnDemand(no_session, ROWS_HERE), self.lake, self.source, self.dsn)
        self.patch(self.source, "observe", lambda streams: late)
        with self.lake.write_lock():
            self.assertEqual([each.rows["notes"] for each in landing.rounds(["notes"])], [0])

    def test_end_a_streaming_query(self) -> None:
        self.append("one", "two")
        self.set_back(5)
        options = parse_source_options(
            {"database": self.dsn, "insecure": "true", "stream": "notes"}
        )
        schema = read_schema_of(self.source, options).schema
        planner, other = Planner(options, schema), Planner(options, schema)
        self.addCleanup(planner.close)
        self.addCleanup(other.close)
        begin = planner.next(planner.initial(), None)
        end = planner.next(begin, None)
        self.assertEqual(end.streams["notes"].linear, 5)
        self.assertEqual(planner.next(end, None), end)
        self.set_back(4)
        for each in planner, other:
            error = self.assertRaises(ReadBeyondDatabase, each.next, end, None)
            self.assertIn("stream 'notes' up to 4, which was read up to 5. It is", str(error))
            self.assertRaises(ReadBeyondDatabase, lambda each=each: list(each.parts(begin, end)))

    def test_a_query_that_starts_beyond_the_stream_is_told_so(self) -> None:
        self.append("one", "two")
        options = parse_source_options(
            {"database": self.dsn, "insecure": "true", "stream": "notes", "starting": "10"}
        )
        planner = Planner(options, read_schema_of(self.source, options).schema)
        self.addCleanup(planner.close)
        begin = planner.next(planner.initial(), None)
        error = self.assertRaises(ReadBeyondDatabase, planner.next, begin, None)
        self.assertIn("or the option starting was beyond the stream's last fact", str(error))


class EarlierCopies(PostgresCase):
    """An earlier copy of a server's data directory, started as it is."""

    timeout = 120

    async def test_are_refused(self) -> None:
        server = PostgresServer(new_data_dir(self), fsync=False)
        self.addCleanup(server.stop)
        server.start()
        await prepare(server.dsn)
        query_one(server.dsn, APPEND)
        server.stop()
        copy = PostgresServer(new_data_dir(self), fsync=False)
        self.addCleanup(copy.stop)
        copy_data_dir(server.data_dir, copy.data_dir)
        server.start()
        for _ in range(3):
            query_one(server.dsn, APPEND)
        source = SynreplDatabase(BlockingDatabase(server.dsn, "tests"))
        lake = Lake.open_or_create(Path(self.mktemp()), source.server, False)
        self.assertEqual(land(lake, source, server.dsn), 4)
        source.close()
        server.stop()
        copy.start()
        query_one(copy.dsn, APPEND)
        source = SynreplDatabase(BlockingDatabase(copy.dsn, "tests"))
        self.addCleanup(source.close)
        lake.require_server(source.server)
        error = self.assertRaises(DatabaseSetBack, land, lake, source, copy.dsn)
        self.assertIn("stream 'notes' up to 2, which was read up to 4", str(error))
        self.assertIn("write them back by 'synrepl lake replay'", str(error))


class LateStandbys(FailoverCase):
    """A standby that lacks what the lake has."""

    async def test_are_not_refused(self) -> None:
        primary, standby = self.servers.primary, self.servers.standby
        query_one(primary.dsn, APPEND)
        await self.disconnect()
        for _ in range(40):  # a standby has sequences up to 32 tokens ahead
            query_one(primary.dsn, APPEND)
        source = SynreplDatabase(BlockingDatabase(primary.dsn, "tests"))
        lake = Lake.open_or_create(Path(self.mktemp()), source.server, False)
        with lake.write_lock():
            landing = Landing(SessionOnDemand(no_session, 100), lake, source, primary.dsn)
            landed = [each.upto["notes"].linear for each in landing.rounds(["notes"])]
        self.assertEqual(landed[-1], 41)
        source.close()
        source = SynreplDatabase(BlockingDatabase(standby.dsn, "tests"))
        self.addCleanup(source.close)
        self.assertEqual(land(lake, source, standby.dsn), 41)


class SynapsesSetBack(ForeignCase):
    """A real Synapse's database: only sequences tell which tokens were given out."""

    async def landed(self, version: str) -> None:
        self.dsn = await foreign_database(version, self)
        self.synapse = self.source(self.dsn)
        self.lake = Lake.open_or_create(Path(self.mktemp()), self.synapse.server, True)
        for stream in self.synapse.streams:
            self.land(stream)

    def land(self, stream: str) -> int:
        with self.lake.write_lock():
            on_demand = SessionOnDemand(no_session, 100_000)
            for _ in Landing(on_demand, self.lake, self.synapse, self.dsn).rounds([stream]):
                pass
        return self.lake.table(stream).position.linear

    async def test_a_sequence_that_was_set_back_is_refused(self) -> None:
        await self.landed("1.163.2")
        before = self.lake.table("receipts").position.highest
        self.execute(self.dsn, "DELETE FROM receipts_linearized")
        self.assertEqual(self.lake.table("receipts").position.highest, before)
        self.land("receipts")
        self.execute(self.dsn, "DELETE FROM stream_positions WHERE stream_name = 'receipts'")
        self.land("receipts")
        self.execute(self.dsn, f"SELECT setval('receipts_sequence', {before})")
        self.land("receipts")
        self.execute(self.dsn, f"SELECT setval('receipts_sequence', {before}, false)")
        self.land("receipts")  # it cannot be told from one that began there
        self.execute(self.dsn, f"SELECT setval('receipts_sequence', {before - 1})")
        error = self.assertRaises(DatabaseSetBack, self.land, "receipts")
        self.assertIn(f"'receipts' up to {before - 1}, which was read up to {before}", str(error))
        self.assertNotIn("replay", str(error))  # it is only read
        self.assertIn("To go on with this database, land into another lake", str(error))

    async def test_rows_that_were_deleted_are_not_refused(self) -> None:
        await self.landed("1.11.1")
        with BlockingDatabase(self.dsn, "tests") as database:
            release = database.run("recognise", recognise)
        emptied = []
        for stream in self.synapse.streams:
            known = release.locate(stream).stream
            if known.sequence is None and self.lake.table(stream).position.highest:
                for feed in known.feeds:
                    self.execute(self.dsn, f"TRUNCATE {feed.table} CASCADE")
                emptied.append(stream)
        self.assertIn("receipts", emptied)
        for stream in emptied:
            self.land(stream)
