"""Real Synapse servers' tables as a source."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import msgspec
import psycopg2
from psycopg2 import extensions
from twisted.trial.unittest import TestCase

from synrepl.core.tokens import Range
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.pipeline.source.database.source_database import NoSuchStream
from synrepl.pipeline.source.database.synapse_database import SynapseDatabase
from synrepl.pipeline.source.plan.chunks import plan_chunks
from synrepl.pipeline.source.reading.chunk_reader import ChunkReader
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.pipeline.source.writer_ranges import WriterRanges
from synrepl.positions.vector import PositionVector
from synrepl.storage.database import Transaction
from synrepl.storage.foreign.paging import MAIN_PROCESS, ForeignFacts
from synrepl.storage.foreign.progress import sole_writer
from synrepl.storage.foreign.release import recognise
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.columns import ColumnType, columns
from synrepl.streams.definition import Fact
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse import SYNAPSE_STREAMS
from tests.storage.foreign_databases import RECORDINGS, foreign_database

ALL = 10**9
CATALOGUE = Catalogue(SYNAPSE_STREAMS)


class ForeignCase(TestCase):
    """Dumps of real servers' databases."""

    timeout = 120

    def source(self, dsn: str, settle_s: float = 0.0) -> SynapseDatabase:
        source = SynapseDatabase(BlockingDatabase(dsn, "tests"), settle_s)
        self.addCleanup(source.close)
        return source

    def execute(self, dsn: str, statement: str) -> None:
        with (
            closing(psycopg2.connect(dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)


class Scans(ForeignCase):
    """Chunks have the same facts as a follower's pages."""

    async def check(self, version: str) -> None:
        dsn = await foreign_database(version)
        source = self.source(dsn)
        reader = ChunkReader(dsn, "tests")
        with BlockingDatabase(dsn, "tests") as database, reader.keeping_connection():
            for name in source.streams:
                with self.subTest(name):
                    facts = database.run("page", lambda txn, name=name: paged(txn, name))
                    highest = max([fact.token for fact in facts], default=1)
                    self.assertEqual(self.scanned(reader, source, name, [0, highest]), facts)
                    parts = [0, highest // 3, highest // 2, highest]
                    self.assertEqual(self.scanned(reader, source, name, parts), facts)

    def scanned(
        self, reader: ChunkReader, source: SynapseDatabase, name: str, cuts: list[int]
    ) -> list[Fact]:
        """All facts by the pipeline's reader, divided into some parts."""
        wanted = source.stream_schema(name).columns
        schema = arrow_schema(wanted)
        names = {name: [column.name for column in wanted]}
        upto = {name: PositionVector({}, cuts[-1])}
        found: list[tuple[Any, ...]] = []
        (chunk,) = plan_chunks(source, {}, upto, names, 10**9)
        for after, end in pairwise(cuts):
            for batch in reader.batches(chunk.within(after, end), schema):
                found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return self.as_facts(name, found)

    def as_facts(self, name: str, found: Sequence[tuple[Any, ...]]) -> list[Fact]:
        codec = RowCodec(CATALOGUE[name])
        types = [column.type for column in columns(CATALOGUE[name])]
        facts = []
        for (stream_id, writer), group in groupby(found, key=itemgetter(0, 2)):
            rows = list(group)
            self.assertEqual([row[1] for row in rows], list(range(len(rows))))
            cells = [
                [
                    json(value) if type_ is ColumnType.JSON else value
                    for value, type_ in zip(row[3:], types, strict=True)
                ]
                for row in rows
            ]
            facts.append(Fact(abs(stream_id), writer, tuple(map(codec.from_cells, cells))))
        return facts

    async def test_1_11_1(self) -> None:
        await self.check("1.11.1")

    async def test_1_20_1(self) -> None:
        await self.check("1.20.1")

    async def test_1_43_0(self) -> None:
        await self.check("1.43.0")

    async def test_1_163_2(self) -> None:
        await self.check("1.163.2")


def json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def paged(txn: Transaction, name: str) -> list[Fact]:
    """All facts of a stream, as a follower's catch-up pages them."""
    release = recognise(txn)
    unnamed = sole_writer(txn, release, name) or MAIN_PROCESS
    facts = ForeignFacts(CATALOGUE[name], release.locate(name))
    return list(facts.page(txn, Range(0, ALL), None, unnamed, 10**6).facts)


class Looking(ForeignCase):
    """The safe bounds of its streams."""

    async def test_every_release_has_its_streams(self) -> None:
        for version in RECORDINGS:
            source = self.source(await foreign_database(version))
            self.assertTrue(source.is_lossy)
            bounds = source.observe(source.streams)
            for name, safe in bounds.items():
                # There are no transactions and no settling time, so everything is settled.
                self.assertTrue(safe.is_complete, (version, name, safe))
                self.assertIsNone(source.trimmed_sql(name))

    async def test_recorded_positions_are_safe_at_once_and_the_rest_later(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        self.execute(
            dsn,
            "DELETE FROM stream_positions WHERE stream_name = 'events';"
            "INSERT INTO stream_positions VALUES ('events', 'w1', 20), ('events', 'w2', 10);"
            "SELECT setval('events_stream_seq', 1000000)",
        )
        source = self.source(dsn, settle_s=3600.0)
        safe = source.observe(["events"])["events"]
        self.assertEqual(safe.bound, PositionVector({"w1": 20, "w2": 10}, 10))
        self.assertEqual((safe.last, safe.is_complete), (1_000_000, False))
        at_once = self.source(dsn).observe(["events"])["events"]
        self.assertEqual(at_once.bound, PositionVector({"w1": 20, "w2": 10}, 1_000_000))

    async def test_an_open_transaction_holds_the_bound(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        source = self.source(dsn)
        before = source.observe(["events"])["events"].last
        with closing(psycopg2.connect(dsn)) as other, other.cursor() as cursor:
            cursor.execute("SELECT nextval('events_stream_seq')")
            fresh = self.source(dsn)
            safe = fresh.observe(["events"])["events"]
            self.assertFalse(safe.is_complete)
            self.assertEqual(safe.last, before + 1)
            other.rollback()
            self.assertEqual(fresh.observe(["events"])["events"].bound.linear, before + 1)

    async def test_a_role_without_rights_to_monitor_sees_open_transactions(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        self.execute(
            dsn,
            "CREATE ROLE onlooker LOGIN PASSWORD 'p'; GRANT USAGE ON SCHEMA public TO onlooker;"
            "GRANT SELECT ON ALL TABLES IN SCHEMA public TO onlooker;"
            "GRANT SELECT ON ALL SEQUENCES IN SCHEMA public TO onlooker",
        )
        self.addCleanup(self.execute, dsn, "DROP OWNED BY onlooker; DROP ROLE onlooker")
        parts = {**extensions.parse_dsn(dsn), "user": "onlooker", "password": "p"}
        dsn_of_onlooker = extensions.make_dsn(**parts)
        recognised = open_source_database(dsn_of_onlooker, "tests")
        self.addCleanup(recognised.close)
        self.assertIsInstance(recognised, SynapseDatabase)
        source = self.source(dsn_of_onlooker)
        with closing(psycopg2.connect(dsn)) as other, other.cursor() as cursor:
            cursor.execute("SELECT nextval('events_stream_seq')")
            self.assertFalse(source.observe(["events"])["events"].is_complete)
        # Its server identity lacks the part that needs more rights.
        self.assertEqual(source.server.rpartition("/")[2], extensions.parse_dsn(dsn)["dbname"])

    async def test_rows_are_estimated_and_ranges_divided(self) -> None:
        source = self.source(await foreign_database("1.163.2"))
        ranges = WriterRanges.between(PositionVector(), PositionVector({}, ALL))
        self.assertGreater(source.estimate_rows("events", ranges), 0)
        first, second, whole = (
            source.count_rows({"backfill": ranges, "events": ranges}, limit)["backfill"]
            for limit in (1, 2, 10**4)
        )
        assert first.last is not None
        assert second.last is not None
        self.assertEqual((first.rows, second.rows), (1, 2))
        self.assertLess(0, first.last)
        self.assertLessEqual(first.last, second.last)
        self.assertLess(whole.rows, 10**4)

    async def test_a_stream_that_the_release_lacks_is_refused(self) -> None:
        source = self.source(await foreign_database("1.163.2"))
        error = self.assertRaises(NoSuchStream, source.stream_schema, "pushers_")
        self.assertIn("did you mean 'pushers'?", str(error))
