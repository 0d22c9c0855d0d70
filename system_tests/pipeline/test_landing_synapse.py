"""Landing a real Synapse's database, including values that do not fit."""

from __future__ import annotations

from contextlib import closing
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
import psycopg2

from synrepl.core.tokens import Range
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.database.synapse_database import SynapseDatabase
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
from system_tests.pipeline.landing_case import LandingCase
from system_tests.pipeline.spark_fixture import shared_session
from tests.storage.foreign_databases import foreign_database

CATALOGUE = Catalogue(SYNAPSE_STREAMS)
VERSION = "1.163.2"


class ForeignCase(LandingCase):
    """A test case with a dump of a real server's database."""

    async def setUp(self) -> None:  # type: ignore[override]
        self.dsn = await foreign_database(VERSION, self)
        self.spark = shared_session()
        database = BlockingDatabase(self.dsn, "tests")
        # There are no writers, so no settling time is needed.
        self.source = self.opened(SynapseDatabase(database, settle_s=0.0))
        self.lake = self.new_lake()

    def facts(self, stream: str) -> list[Fact]:
        """All facts of a stream, as a follower's catch-up pages them."""

        def work(txn: Transaction) -> list[Fact]:
            release = recognise(txn)
            unnamed = sole_writer(txn, release, stream) or MAIN_PROCESS
            facts = ForeignFacts(CATALOGUE[stream], release.locate(stream))
            return list(facts.page(txn, Range(0, 10**9), None, unnamed, 10**6).facts)

        with BlockingDatabase(self.dsn, "tests") as database:
            return database.run("page", work)

    def landed_facts(self, stream: str) -> list[Fact]:
        """All facts of a stream in the lake."""
        codec = RowCodec(CATALOGUE[stream])
        types = [column.type for column in columns(CATALOGUE[stream])]
        found = []
        for (stream_id, writer), rows in groupby(self.in_lake(stream), key=itemgetter(0, 2)):
            cells = [
                [
                    msgspec.json.decode(value)
                    if type_ is ColumnType.JSON and value is not None
                    else value
                    for value, type_ in zip(row[3:], types, strict=True)
                ]
                for row in rows
            ]
            found.append(Fact(abs(stream_id), writer, tuple(map(codec.from_cells, cells))))
        return found

    def execute(self, statement: str) -> int:
        """Run a statement on another connection; the number of affected rows."""
        with closing(psycopg2.connect(self.dsn)) as other, other, other.cursor() as cursor:
            cursor.execute(statement)
            return int(cursor.rowcount)


class LandingASynapse(ForeignCase):
    """Landing of all streams."""

    def test_every_row_of_every_stream_is_landed(self) -> None:
        self.assertTrue(self.lake.marker.is_lossy)
        (landed,) = self.land()
        self.assertGreater(sum(landed.rows.values()), 500)
        self.assertEqual(landed.quarantined.total(), 0)
        for stream in self.source.streams:
            facts = self.facts(stream)
            self.assertEqual(self.landed_facts(stream), facts, stream)
            self.assertEqual(landed.rows[stream], sum(len(fact.rows) for fact in facts))
        (again,) = self.land()
        self.assertEqual(again.rows.total(), 0)


class Died(BaseException):
    """Simulates the death of the process; no handler of Exception catches it."""


class LandingBadValues(ForeignCase):
    """Facts with values that do not fit are quarantined, with the reason."""

    def spoil(self, some: str) -> int:
        """Make the JSON of some receipts invalid; the number of rows."""
        return self.execute(f"UPDATE receipts_linearized SET data = '{{bad' WHERE {some}")

    def bad(self) -> list[tuple[int, str]]:
        """IDs and reasons of the quarantined receipts."""
        return [(row[0], row[3]) for row in self.in_quarantine("receipts")]

    def ids(self, where: str = "true") -> list[int]:
        with closing(psycopg2.connect(self.dsn)) as other, other.cursor() as cursor:
            cursor.execute(
                f"SELECT stream_id FROM receipts_linearized WHERE {where} ORDER BY stream_id"
            )
            return [row[0] for row in cursor.fetchall()]

    def test_quarantines_values_that_do_not_fit(self) -> None:
        ids = self.ids()
        bad = {ids[0], ids[len(ids) // 2], ids[-1]}
        self.spoil(f"stream_id IN ({', '.join(map(str, bad))})")
        whole = self.facts("events")
        (landed,) = self.land()
        self.assertEqual(
            landed.quarantined,
            {"receipts": 3} | dict.fromkeys(landed.rows.keys() - {"receipts"}, 0),
        )
        self.assertEqual(landed.rows["receipts"], len(ids) - 3)
        self.assertEqual([row[0] for row in self.in_lake("receipts")],
                         [id_ for id_ in ids if id_ not in bad])  # fmt: skip
        for (stream_id, why), row in zip(self.bad(), self.in_quarantine("receipts"), strict=True):
            self.assertIn(stream_id, bad)
            self.assertIn("invalid input syntax for type json", why)
            self.assertEqual(msgspec.json.decode(row[4])["data"], "{bad")
        self.assertEqual(len(self.bad()), 3)
        self.assertEqual(self.landed_facts("events"), whole)
        (again,) = self.land()
        self.assertEqual((again.quarantined.total(), len(self.bad())), (0, 3))

    def test_quarantines_once_if_the_process_dies_between_the_two_commits(self) -> None:
        ids = self.ids()
        self.spoil(f"stream_id IN ({ids[0]}, {ids[1]})")
        real = StreamTable.append

        def dying(table: StreamTable, *args: Any, **options: Any) -> None:
            if table.path == self.lake.path / "streams" / "receipts":
                raise Died
            real(table, *args, **options)

        patch = self.patch(StreamTable, "append", dying)
        self.assertRaises(Died, self.land)
        patch.restore()
        self.assertEqual(len(self.bad()), 2)
        self.assertFalse(self.lake.has_stream("receipts"))
        # A new receipt arrives before the next attempt.
        self.execute(
            "INSERT INTO receipts_linearized (stream_id, room_id, receipt_type, user_id, event_id,"
            " data) VALUES (1000000, '!r', 'm.read', '@u', '$e', '{bad')"
        )
        self.execute(
            "UPDATE stream_positions SET stream_id = 1000000 WHERE stream_name = 'receipts'"
        )
        self.land()
        self.assertEqual([stream_id for stream_id, _ in self.bad()], [ids[0], ids[1], 1_000_000])
        self.assertEqual([row[0] for row in self.in_lake("receipts")], ids[2:])

    def test_the_position_of_the_quarantine_never_goes_back(self) -> None:
        ids = self.ids()
        self.spoil("true")
        landing = self.landing(round_rows=-(-len(ids) // 3))
        at = PositionVector()
        for _ in landing.rounds(["receipts"]):
            quarantined = self.lake.quarantine("receipts")
            assert quarantined is not None
            self.assertTrue(quarantined.position.covers(at))
            at = quarantined.position
        self.assertEqual([stream_id for stream_id, _ in self.bad()], ids)
        self.assertEqual(self.in_lake("receipts"), [])
