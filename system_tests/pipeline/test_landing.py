"""Landing, with real Spark and a real PostgreSQL: each row is in the lake once."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.dataframe import table_dataframe
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land.landing import GapInSource
from synrepl.pipeline.lake.table import SchemaChanged
from synrepl.pipeline.lake.watermarks import Watermarks
from synrepl.pipeline.source.database.source_database import NoSuchStream
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.pipeline.source.plan.offset import Offset
from synrepl.pipeline.source.query_follower import QueryFollower
from synrepl.positions.vector import PositionVector
from synrepl.storage.store import Draft
from synrepl.storage.tables import ensure_tables
from synrepl.streams.declared import declare
from synrepl.streams.synapse.backfill import BACKFILL
from system_tests.pipeline.landing_case import LandingCase
from tests.storage.samples import EVERYTHING, NOTES, rows_of


class LandingRows(LandingCase):
    """The contents of the lake."""

    async def test_every_type_with_every_awkward_value_is_landed(self) -> None:
        lease = await self.process("one").store.open_writer("w1", [EVERYTHING, BACKFILL])
        for stream in (EVERYTHING, BACKFILL):
            written = rows_of(stream, 40)
            for some in (written[:25], written[25:]):  # facts of several rows
                await lease.append(stream, [Draft([some])], 0)
        self.notes(1, 3)
        (landed,) = self.land()
        self.assertEqual(landed.rows["notes"], 3)
        self.assertGreater(landed.rows["backfill"], 0)
        self.assertEqual(set(landed.behind.values()), {0})
        self.assert_landed()
        down = [row[0] for row in self.in_lake("backfill")]
        self.assertTrue(all(stream_id < 0 for stream_id in down))
        self.assertEqual(self.lake.table("backfill").position["w1"], -min(down))
        # Spark reads the same.
        table = self.lake.table("everything")
        found = sorted(tuple(row) for row in table_dataframe(self.spark, table).collect())
        self.assertEqual(found, self.in_lake("everything"))

    def test_each_round_lands_what_is_new(self) -> None:
        self.land()
        self.assertEqual(self.lake.streams, self.source.streams)  # including empty streams
        landing = self.landing()
        for first in (1, 5, 9):
            self.notes(first, first + 3)
            (landed,) = landing.rounds(self.source.streams)
            self.assertEqual((landed.rows["notes"], landed.quarantined["notes"]), (4, 0))
            self.assertEqual(landed.upto["notes"], self.lake.table("notes").position)
            self.assert_landed()
        before = self.lake.table("notes").files
        (landed,) = self.land()  # by another process, which continues at the lake's position
        self.assertEqual(landed.rows["notes"], 0)
        self.assertEqual(self.lake.table("notes").files, before)
        self.assertEqual(len(before), 3)

    def test_only_the_requested_streams_are_landed(self) -> None:
        self.notes(1, 2)
        list(self.landing().rounds(["notes"]))
        self.assertEqual(self.lake.streams, ["notes"])
        self.assertRaises(NoSuchStream, next, self.landing().rounds(["note"]))

    def test_many_rows_are_landed_in_rounds_and_tasks(self) -> None:
        self.sql(
            "INSERT INTO synrepl.notes SELECT fact, row, 'sql', 'x', fact"
            " FROM generate_series(1, 200) AS fact, generate_series(0, fact % 3) AS row"
        )
        self.sql("SELECT setval('synrepl._notes_seq', 200)")
        rounds = self.land(task_rows=40, round_rows=120)
        self.assertGreater(len(rounds), 2)
        self.assertEqual([round_.behind["notes"] for round_ in rounds][-1], 0)
        behind = [round_.behind["notes"] for round_ in rounds]
        self.assertEqual(behind, sorted(behind, reverse=True))
        self.assertGreater(len(self.lake.table("notes").files), len(rounds))
        self.assert_landed()
        ranges = [(file.low, file.high) for file in self.lake.table("notes").files]
        self.assertTrue(all(a[1] < b[0] for a, b in pairwise(ranges)))

    def test_special_characters_in_the_path_are_accepted(self) -> None:
        path = Path(self.mktemp()) / "a (1) {x,y} *? ü"
        self.lake = Lake.open_or_create(path, self.source.server, False)
        self.notes(1, 3)
        self.land()
        self.assert_landed()
        rows = table_dataframe(self.spark, self.lake.table("notes")).select("n").collect()
        self.assertEqual(sorted(row.n for row in rows), [1, 2, 3])

    def test_landing_records_watermarks(self) -> None:
        self.notes(1, 3)
        self.land()
        rows = Watermarks(self.lake).table().to_pylist()
        self.assertIn(("notes", 3), [(row["stream"], row["token"]) for row in rows])


class LandingChangedColumns(LandingCase):
    """Streams whose columns change."""

    def ensure(self, *streams: object) -> None:
        with BlockingDatabase(self.dsn, "tests") as database:
            database.run("ensure", lambda txn: ensure_tables(txn, streams))  # type: ignore[arg-type]

    def test_new_columns_and_new_streams_are_landed(self) -> None:
        landing = self.landing()
        self.notes(1, 2)
        list(landing.rounds(["notes"]))
        wider = {"text": "text", "n": "bigint?", "tags": "text[]?", "doc": "json?"}
        self.ensure(declare("notes", wider), declare("fresh", {"a": "text"}))
        self.append("notes", {"text": "tagged", "tags": ["a", "b"], "doc": {"k": 1}})
        self.append("fresh", {"a": "x"})
        for name in ("notes", "fresh"):
            list(landing.rounds([name]))
        self.assert_landed("notes", "fresh")
        old, _, new = self.in_lake("notes")
        self.assertEqual((old[-2:], new[-2]), ((None, None), ["a", "b"]))
        rows = table_dataframe(self.spark, self.lake.table("notes")).orderBy("stream_id").collect()
        self.assertEqual([row.tags for row in rows], [None, None, ["a", "b"]])

    def test_a_column_with_another_type_is_refused(self) -> None:
        self.notes(1, 1)
        self.land()
        self.sql("ALTER TABLE synrepl.notes ALTER n TYPE text")
        error = self.assertRaises(SchemaChanged, self.land)
        self.assertIn("column 'n' as text (the table has bigint)", str(error))


class LandingSeveralWriters(LandingCase):
    """Several writers, which commit in any order."""

    def test_commits_out_of_order_are_landed_once(self) -> None:
        writers = ("w1", "w2", "w3")
        self.add_writers("notes", *writers)
        held = {writer: self.open() for writer in writers}
        landing = self.landing()
        n, seen = 0, 0
        for turn in range(3):
            order = [*writers[turn:], *writers[:turn]]
            for writer in order:  # tokens are allocated in one order
                self.notes(n + 1, n + 4, writer=writer, on=held[writer])
                n += 4
            for writer in reversed(order):  # and committed in the other
                if (turn, writer) == (1, "w2"):
                    held[writer].rollback()
                else:
                    held[writer].commit()
                list(landing.rounds(["notes"]))
                self.assert_landed("notes")
                now = len(self.in_lake("notes"))
                self.assertGreaterEqual(now, seen)
                seen = now
        self.assertEqual(seen, 32)

    def test_an_open_transaction_holds_its_own_writer_only(self) -> None:
        self.add_writers("notes", "slow", "quick")
        slow = self.open()
        self.notes(1, 1, writer="quick")
        self.land()
        self.notes(2, 2, writer="slow", on=slow)
        self.notes(3, 4, writer="quick")
        self.land()
        self.assertEqual([row[4] for row in self.in_lake("notes")], [1, 3, 4])
        at = self.lake.table("notes").position
        self.assertEqual((at.linear, at["quick"], at["slow"]), (1, 4, 1))
        slow.commit()
        (landed,) = self.land()
        self.assertEqual(landed.rows["notes"], 1)
        self.assert_landed()

    def test_the_position_never_goes_back(self) -> None:
        self.add_writers("notes", "slow", "quick")
        slow = self.open()
        self.notes(1, 1, writer="slow")
        self.notes(2, 5, writer="quick")
        self.land()  # no transactions are open, so everything is settled
        before = self.lake.table("notes").position
        self.notes(6, 6, writer="slow", on=slow)
        self.notes(7, 7, writer="quick", on=slow)
        # To a new process both may hold tokens, and no position is recorded.
        self.source = self.opened(SynreplDatabase(BlockingDatabase(self.dsn, "tests")))
        bound = self.source.observe(["notes"])["notes"].bound
        self.assertFalse(bound.covers(before))
        (landed,) = self.land()
        at = self.lake.table("notes").position
        self.assertEqual((at.linear, at["slow"], at["quick"]), (5, 5, 5))
        self.assertEqual((landed.rows["notes"], landed.behind["notes"]), (0, 0))
        slow.commit()
        self.land()
        self.assert_landed()

    def test_rounds_end_when_every_writer_has_reached_its_observed_position(self) -> None:
        self.add_writers("notes", "slow", "quick")
        slow = self.open()
        self.notes(1, 3, writer="slow", on=slow)
        self.notes(4, 30, writer="quick")
        self.land()
        slow.commit()
        rounds = self.land(round_rows=1)
        self.assertEqual(
            [round_.rows["notes"] for round_ in rounds if round_.rows["notes"]], [1] * 3
        )
        self.assertEqual(rounds[-1].behind["notes"], 0)
        self.assert_landed()

    async def test_a_dead_writer_holds_landing_until_it_is_fenced(self) -> None:
        process = self.process("doomed")
        lease = await process.store.open_writer("doomed", [NOTES])
        await lease.reserve(NOTES, 1, 0)
        self.notes(1, 2)
        self.sql("SELECT pg_terminate_backend(%s, 10000)", process.session_of(lease).backend_pid)
        self.land()
        self.assert_landed()  # other writers continue
        self.assertEqual(self.lake.table("notes").position.linear, 0)
        await self.process("other").store.fence(NOTES, "doomed")
        self.land()
        self.assertEqual(self.lake.table("notes").position.linear, 3)
        self.assert_landed()


class LandingTrimmedStreams(LandingCase):
    """Facts that the database has trimmed."""

    def trim(self, upto: int) -> None:
        self.sql("UPDATE synrepl._streams SET trimmed = %s WHERE stream = 'notes'", upto)
        self.sql("DELETE FROM synrepl.notes WHERE stream_id <= %s", upto)

    def test_a_lake_begins_after_trimmed_facts(self) -> None:
        self.notes(1, 6)
        self.trim(4)
        self.land()
        self.assertEqual(self.lake.table("notes").position.linear, 6)
        self.assert_landed()

    def test_a_lake_begins_empty_if_everything_is_trimmed(self) -> None:
        self.notes(1, 6)
        self.trim(6)
        self.land()
        self.assertEqual(self.in_lake("notes"), [])
        self.notes(7, 8)
        self.land()
        self.assert_landed()

    def test_facts_trimmed_before_they_are_landed_are_refused_or_accepted(self) -> None:
        self.notes(1, 2)
        self.land()
        self.notes(3, 6)
        kept = self.in_lake("notes")
        self.trim(4)
        error = self.assertRaises(GapInSource, self.land)
        self.assertEqual(error.facts, {"stream": "notes", "trimmed": 4, "after": 2})
        self.assertIn("must re-land from 4: 'synrepl lake land --accept-gap notes'", str(error))
        self.assertRaises(GapInSource, self.land, accept_gaps=["everything"])
        self.land(accept_gaps=["notes"])
        self.assertEqual(self.in_lake("notes"), [*kept, *self.in_table("notes")])
        self.notes(7, 7)
        self.land()  # the gap was accepted before
        self.assertEqual([row[0] for row in self.in_lake("notes")], [1, 2, 5, 6, 7])

    def test_landed_facts_may_be_trimmed(self) -> None:
        self.notes(1, 6)
        self.land()
        self.trim(6)
        self.notes(7, 7)
        self.land()
        self.assertEqual([row[0] for row in self.in_lake("notes")], list(range(1, 8)))

    async def test_trimming_waits_for_the_lake(self) -> None:
        store = self.process("master").store
        follower = QueryFollower(BlockingDatabase(self.dsn, "tests"), "lake", None, 3600.0)
        self.addCleanup(follower.close)
        landing = self.landing(
            acknowledge=lambda upto: follower.acknowledge(Offset(self.source.server, upto))
        )
        self.notes(1, 4)
        list(landing.rounds(self.source.streams))
        self.notes(5, 8)
        await store.record_positions(NOTES, 8, {"sql": 8})
        trimmed = await store.trim(NOTES, 8, 0, 1000)
        self.assertEqual((trimmed.upto, trimmed.held_by), (4, "lake"))
        list(landing.rounds(self.source.streams))
        self.assertEqual((await store.trim(NOTES, 8, 0, 1000)).upto, 8)
        self.assertEqual([row[0] for row in self.in_lake("notes")], list(range(1, 9)))

    def test_only_landed_positions_are_acknowledged(self) -> None:
        acknowledged: list[PositionVector] = []

        def acknowledge(upto: object) -> None:
            acknowledged.append(upto["notes"])  # type: ignore[index]
            self.assertEqual(self.lake.table("notes").position, acknowledged[-1])

        self.notes(1, 3)
        self.land(acknowledge=acknowledge)
        self.assertEqual([at.linear for at in acknowledged], [3])
