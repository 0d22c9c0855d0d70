"""Checking a lake against its source, with real Spark and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from synrepl.core.tokens import Range
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.check.check import Extent, check
from synrepl.pipeline.lake.check.here import equal_rows
from synrepl.pipeline.lake.check.report import Difference, Example, Outcome
from synrepl.pipeline.lake.lake import Lake, LakeOfAnother
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from synrepl.pipeline.lake.source_rows import no_mask
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.database.synapse_database import SynapseDatabase
from synrepl.pipeline.source.plan.chunks import plan_chunks
from synrepl.positions.vector import PositionVector
from system_tests.pipeline.lake_case import LakeCase
from tests.storage.foreign_databases import foreign_database
from tests.storage.postgres import PREPARED

Change = Callable[[pa.Table], pa.Table]


def row(fact: int, number: int = 0) -> Any:
    """The condition that a row is this one."""
    return (pc.field("stream_id") == fact) & (pc.field("row_no") == number)


def without(fact: int, number: int = 0) -> Change:
    return lambda rows: rows.filter(~row(fact, number))


def twice(fact: int, number: int = 0) -> Change:
    return lambda rows: pa.concat_tables([rows, rows.filter(row(fact, number))])


def beyond(fact: int) -> Change:
    """A row of the next fact, with the same values."""
    made = with_value(fact, "stream_id", fact + 1)
    return lambda rows: pa.concat_tables([rows, made(rows.filter(row(fact)))])


def with_value(fact: int, column: str, value: Any, number: int = 0) -> Change:
    def change(rows: pa.Table) -> pa.Table:
        ids, numbers = rows.column("stream_id"), rows.column("row_no")
        here = pc.and_(pc.equal(ids, fact), pc.equal(numbers, number)).to_pylist()
        cells = rows.column(column).to_pylist()
        mixed = [value if hit else cell for hit, cell in zip(here, cells, strict=True)]
        at = rows.schema.get_field_index(column)
        field = rows.schema.field(at)
        return rows.set_column(at, field, pa.chunked_array([pa.array(mixed, field.type)]))

    return change


def erase_first_text(batch: pa.RecordBatch, stream_schema: StreamSchema) -> pa.RecordBatch:
    """A mask: the note of fact 1 has no text."""
    texts = pc.if_else(pc.equal(batch.column("stream_id"), 1), None, batch.column("text"))
    return batch.set_column(batch.schema.get_field_index("text"), "text", texts)


class CheckOfALargeLake(LakeCase):
    """A few wrong rows among 20,000, in four ranges."""

    extent = Extent(range_rows=5_000)

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.notes(10_000, rows=2)
        self.land("notes", PositionVector({}, 10_000), files=3)

    def test_one_of_each_is_found_and_named(self) -> None:
        found = self.checked(self.extent).streams[0]
        self.assertEqual(
            (found.equal, found.source_rows, found.lake_rows, found.ranges),
            (True, 20_000, 20_000, 4),
        )
        self.rewrite("notes", with_value(7_777, "n", 100, 1))
        self.rewrite("notes", without(5, 1))
        self.rewrite("notes", twice(4_000))
        report = self.checked(self.extent)
        self.assertFalse(report.equal)
        found = report.streams[0]
        self.assertEqual((found.source_rows, found.lake_rows), (20_000, 20_000))
        self.assertEqual(
            [(d.missing, d.only_in_lake, d.doubled, d.changed) for d in found.differences],
            [(1, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)],
        )
        for difference, fact in zip(found.differences, (5, 4_000, 7_777), strict=True):
            self.assertIn(fact, Range(difference.after, difference.upto))
            self.assertApproximates(difference.upto - difference.after, 2_500, 10)
        self.assertEqual(
            found.examples,
            (
                Example("missing", 5, 1),
                Example("doubled", 4_000, 0),
                Example("changed", 7_777, 1, ("n",)),
            ),
        )
        self.assertEqual(report.problems[-1], "stream 'notes', fact 7777, row 1: changed in n")
        shown = json.loads(json.dumps(report.to_json()))
        self.assertEqual(
            (shown["equal"], shown["streams"][0]["differences"][0]["missing"]), (False, 1)
        )

    def test_a_row_lost_and_another_one_doubled_in_one_range(self) -> None:
        # The number of rows is right; and with XOR alone, doubled rows would cancel out.
        self.rewrite("notes", without(5))
        self.rewrite("notes", twice(7))
        [difference] = self.checked(self.extent).streams[0].differences
        self.assertEqual((difference.missing, difference.doubled), (1, 1))
        self.assertEqual(difference.source_rows, difference.lake_rows)

    def test_examples_are_bounded_and_counts_are_not(self) -> None:
        self.rewrite("notes", lambda rows: rows.filter(pc.field("stream_id") > 1_000))
        found = self.checked(Extent(examples=3, range_rows=5_000)).streams[0]
        self.assertEqual(sum(each.missing for each in found.differences), 2_000)
        self.assertEqual([each.stream_id for each in found.examples], [1, 1, 2])


class CheckWithoutSpark(LakeCase):
    """Small streams are compared in this process."""

    @property
    def no_session(self) -> SessionOnDemand:
        def asked_for() -> NoReturn:
            raise LookupError("a session was asked for")

        return SessionOnDemand(asked_for)

    def test_equal_streams_need_no_session(self) -> None:
        self.notes(300, rows=2)
        self.land("notes", PositionVector({}, 300), files=3)
        report = check(self.no_session, self.lake, self.source, self.dsn)
        self.assertTrue(report.equal)
        self.assertEqual(
            [(each.source_rows, each.lake_rows) for each in report.streams], [(600, 600)]
        )

    def test_a_stream_that_differs_or_is_larger_needs_one(self) -> None:
        self.notes(300)
        self.land("notes", PositionVector({}, 300))
        larger = Extent(rows_here=299)
        self.assertRaises(
            LookupError, check, self.no_session, self.lake, self.source, self.dsn, larger
        )
        whole: list[pa.Table] = []

        def kept(rows: pa.Table) -> pa.Table:
            whole.append(rows)
            return twice(1)(rows)

        self.rewrite("notes", kept)
        for change in (
            twice(5),
            without(300),
            beyond(300),
            with_value(7, "text", "other"),
            with_value(8, "n", None),
        ):
            self.rewrite("notes", lambda rows: whole[0])
            self.assertTrue(check(self.no_session, self.lake, self.source, self.dsn).equal)
            self.rewrite("notes", change)
            self.assertRaises(LookupError, check, self.no_session, self.lake, self.source, self.dsn)

    def test_a_zero_that_is_negative_at_the_source_only_needs_one(self) -> None:
        self.sql(
            "INSERT INTO synrepl.everything (stream_id, row_no, writer, text, whole, flag, real, doc,"
            " list) VALUES (1, 0, 'w', 'a', 1, true, '-0', '{}', '{}')"
        )
        self.land("everything", PositionVector({}, 1))
        only = Extent(["everything"])
        self.assertTrue(check(self.no_session, self.lake, self.source, self.dsn, only).equal)
        self.rewrite("everything", with_value(1, "real", 0.0))
        self.assertRaises(
            LookupError, check, self.no_session, self.lake, self.source, self.dsn, only
        )

    def test_a_doubled_row_is_not_another_one_like_it(self) -> None:
        self.sql(
            "INSERT INTO synrepl.notes (stream_id, row_no, writer, text)"
            " SELECT 1, n, 'w', 'same' FROM generate_series(0, 1) AS n"
        )
        upto = PositionVector({}, 1)
        table = self.land("notes", upto)
        names = [column.name for column in table.stream_schema.columns]
        parts = [*plan_chunks(self.source, {}, {"notes": upto}, {"notes": names})]

        def rows() -> int | None:
            found = self.lake.table("notes")
            return equal_rows(self.dsn, parts, found, found.files, 0, None, no_mask, numbered=False)

        self.assertEqual(rows(), 2)
        self.rewrite("notes", with_value(1, "row_no", 0, number=1))
        self.assertIsNone(rows())


class CheckEquality(LakeCase):
    """Which differences count."""

    def test_rows_beyond_a_writers_position_are_not_compared(self) -> None:
        self.notes(20)
        self.land("notes", PositionVector({"even": 16, "odd": 10}, 10), files=2)
        self.assertTrue(self.checked().equal)
        self.notes(5, first=21)  # not landed, so not compared
        self.assertTrue(self.checked().equal)
        [found] = self.checked().streams
        self.assertEqual((found.upto, found.source_rows, found.goes_on_to), (16, 13, 0))
        self.sql("SELECT setval('synrepl._notes_seq', 25)")
        self.assertEqual(self.checked().streams[0].goes_on_to, 25)

    def test_rows_beyond_the_position_are_differences(self) -> None:
        self.notes(20)
        table = self.land("notes", PositionVector({}, 20))
        extra = pa.table(
            {"stream_id": [25], "row_no": [0], "writer": ["odd"], "text": ["?"], "n": [None]},
            schema=pa.schema([("stream_id", pa.int64()), ("row_no", pa.int64()),
                              ("writer", pa.string()), ("text", pa.string()), ("n", pa.int64())]),
        )  # fmt: skip
        table.append([self.write(table, extra)], table.position, table.position)
        [found] = self.checked().streams
        self.assertEqual(found.differences, (Difference(0, 20, 20, 21, 0, 1, 0, 0),))
        self.assertEqual(found.examples, (Example("only in the lake", 25, 0),))
        self.assertTrue(self.checked(Extent(upto=20)).equal)

    def test_null_differs_from_an_empty_text(self) -> None:
        self.sql("INSERT INTO synrepl.notes VALUES (1, 0, 'a', '', NULL), (2, 0, 'a', 'x', NULL)")
        self.land("notes", PositionVector({}, 2))
        self.assertTrue(self.checked().equal)
        self.rewrite("notes", with_value(1, "text", None))
        self.assertEqual(self.checked().streams[0].examples, (Example("changed", 1, 0, ("text",)),))

    def test_a_mask_is_applied_to_the_source(self) -> None:
        self.notes(3)
        self.land("notes", PositionVector({}, 3))
        self.rewrite("notes", with_value(1, "text", None))
        self.assertFalse(self.checked().equal)
        self.assertTrue(self.checked(mask=erase_first_text).equal)

    def test_trimmed_rows_are_reported_and_are_no_difference(self) -> None:
        self.notes(20)
        self.land("notes", PositionVector({}, 20))
        self.sql("UPDATE synrepl._streams SET trimmed = 8 WHERE stream = 'notes'")
        self.sql("DELETE FROM synrepl.notes WHERE stream_id <= 8")
        [found] = self.checked().streams
        self.assertEqual((found.equal, found.after, found.source_rows), (True, 8, 12))

    def test_a_missing_stream_and_new_columns_are_reported(self) -> None:
        self.notes(2)
        self.land("notes", PositionVector({}, 2))
        self.sql("ALTER TABLE synrepl.notes ADD COLUMN more text")
        self.source = self.source_of(self.dsn)
        [found] = self.checked().streams
        self.assertEqual((found.equal, found.not_in_lake), (True, ("more",)))
        self.sql("ALTER TABLE synrepl.notes DROP COLUMN n")
        self.source = self.source_of(self.dsn)
        [found] = self.checked().streams
        self.assertEqual(found.not_compared, "the source has no column 'n' any more")
        self.assertIs(found.outcome, Outcome.NOT_COMPARED)

    def test_an_empty_lake_of_a_stream_with_rows_is_not_equal(self) -> None:
        self.notes(5)
        table = self.land("notes", PositionVector())
        self.assertIs(self.checked().outcome, Outcome.NOT_COMPARED)
        table.append([], PositionVector(), PositionVector({}, 5))
        [found] = self.checked().streams
        self.assertEqual([each.missing for each in found.differences], [5])

    async def test_another_database_is_refused_unless_it_is_a_copy(self) -> None:
        self.notes(5)
        self.land("notes", PositionVector({}, 5))
        dsn = await PREPARED.copy(self)
        self.source, self.dsn = self.source_of(dsn), dsn
        self.assertRaises(LakeOfAnother, self.checked)
        [found] = self.checked(copy=True).streams
        self.assertEqual([each.only_in_lake for each in found.differences], [5])


class CheckWithNothingToCompare(LakeCase):
    """A lake is not equal if nothing was compared."""

    def assert_not_compared(self, *words: str, extent: Extent | None = None) -> None:
        report = self.checked(extent) if extent else self.checked()
        self.assertIs(report.outcome, Outcome.NOT_COMPARED)
        self.assertFalse(report.equal)
        (problem,) = report.problems
        for word in words:
            self.assertIn(word, problem)
        shown = report.to_json()
        self.assertEqual((shown["outcome"], shown["equal"]), ("not compared", False))

    def test_a_lake_without_streams_is_not_compared(self) -> None:
        self.assert_not_compared("the lake has no streams")

    def test_a_stream_that_was_never_landed_is_not_compared(self) -> None:
        self.sql("SELECT synrepl.append('notes', %s)", '[{"text": "a"}]')
        self.lake.ensure_table(self.source.stream_schema("notes"))
        self.assert_not_compared("stream 'notes' was not compared", "none of it", "up to 1")
        self.land("notes", PositionVector())
        self.assert_not_compared("the lake has none of it, and the database goes up to 1")

    def test_rows_above_the_sequence_are_not_called_equal(self) -> None:
        self.notes(3)
        self.land("notes", PositionVector())
        self.assert_not_compared("the lake has none of it")

    def test_tokens_without_rows_are_no_reason_to_land_first(self) -> None:
        self.sql("SELECT setval('synrepl._notes_seq', 1000000001)")
        self.land("notes", PositionVector())
        [found] = self.checked().streams
        self.assertEqual((found.equal, found.lake_rows, found.goes_on_to), (True, 0, 1000000001))

    def test_a_stream_that_is_empty_on_both_sides_is_equal(self) -> None:
        self.land("notes", PositionVector())
        report = self.checked()
        self.assertTrue(report.equal)
        self.assertEqual((report.streams[0].source_rows, report.streams[0].lake_rows), (0, 0))
        self.assertEqual(report.streams_not_in_lake, ["backfill", "everything"])

    def test_a_stream_that_was_trimmed_to_the_end_has_no_rows_above_on_either_side(self) -> None:
        for _ in range(6):
            self.sql("SELECT synrepl.append('notes', %s)", '[{"text": "a"}]')
        table = self.land("notes", PositionVector({}, 6))
        self.sql("UPDATE synrepl._streams SET trimmed = 6 WHERE stream = 'notes'")
        self.sql("DELETE FROM synrepl.notes")
        [found] = self.checked().streams
        self.assertEqual((found.equal, found.after, found.upto, found.lake_rows), (True, 6, 6, 0))
        self.sql("SELECT synrepl.append('notes', %s)", '[{"text": "a"}]')
        [found] = self.checked().streams
        self.assertTrue(found.equal)
        self.assertGreater(found.goes_on_to, 6)
        columns = ("stream_id", "row_no", "writer", "text", "n")
        extra = pa.table(
            [pa.array([each], kind) for each, kind in zip((9, 0, "odd", "?", None), (
                pa.int64(), pa.int64(), pa.string(), pa.string(), pa.int64()), strict=True)],
            names=columns,
        )  # fmt: skip
        table.append([self.write(table, extra)], table.position, table.position)
        [found] = self.checked().streams
        self.assertEqual(found.examples, (Example("only in the lake", 9, 0),))

    def test_a_stream_that_was_trimmed_beyond_the_lake_is_not_compared(self) -> None:
        self.notes(6)
        self.land("notes", PositionVector({}, 6))
        self.sql("UPDATE synrepl._streams SET trimmed = 8 WHERE stream = 'notes'")
        self.sql("DELETE FROM synrepl.notes")
        self.assert_not_compared("trimmed it up to 8, and the lake has it up to 6")

    def test_a_stream_that_was_trimmed_before_the_lake_began_is_equal(self) -> None:
        self.sql("UPDATE synrepl._streams SET trimmed = 6 WHERE stream = 'notes'")
        self.lake.ensure_table(self.source.stream_schema("notes")).append(
            [], PositionVector(), PositionVector({}, 6)
        )
        self.assertTrue(self.checked().equal)

    def test_tokens_beyond_the_lake_are_not_compared(self) -> None:
        self.notes(6)
        self.land("notes", PositionVector({}, 6))
        for extent in (Extent(after=6), Extent(after=4, upto=3)):
            self.assert_not_compared("up to 6, and not what was asked for", extent=extent)
        self.assertTrue(self.checked(Extent(after=5)).equal)

    def test_the_report_has_the_worst_outcome_of_its_streams(self) -> None:
        self.notes(6)
        self.land("notes", PositionVector({}, 6))
        self.land("backfill", PositionVector())
        self.assertTrue(self.checked().equal)
        event = [{"event_id": "$e", "room_id": "!r", "type": "t"}]
        self.sql("SELECT synrepl.append('backfill', %s)", json.dumps(event))
        self.assertIs(self.checked().outcome, Outcome.NOT_COMPARED)
        self.rewrite("notes", without(5))
        report = self.checked()
        self.assertIs(report.outcome, Outcome.DIFFERENT)
        self.assertEqual(
            [each.outcome for each in report.streams], [Outcome.NOT_COMPARED, Outcome.DIFFERENT]
        )


class CheckOfAwkwardValues(LakeCase):
    """Different values that some comparisons consider equal."""

    def test_a_change_of_any_type_is_found(self) -> None:
        self.sql(
            "INSERT INTO synrepl.everything (stream_id, row_no, writer, text, whole, flag, real, doc,"
            " list, text_or_null, whole_or_null, real_or_null, list_or_null)"
            " SELECT n, 0, 'w', E'a\\tb', 9223372036854775807, true, '-0', '{\"a\": [1, 2.50]}',"
            " '{a,bc}', NULL, 7, 0.1, NULL FROM generate_series(1, 11) AS n"
        )
        self.land("everything", PositionVector({}, 11))
        self.assertTrue(self.checked().equal)
        changes: list[tuple[str, Any]] = [
            ("writer", "W"),
            ("text", "a\tb "),
            ("whole", 2**63 - 2),
            ("flag", False),
            ("real", 0.0),
            ("doc", '{"a":[1,2.50]}'),
            ("list", ["ab", "c"]),
            ("text_or_null", ""),
            ("whole_or_null", None),
            ("real_or_null", float(np.nextafter(0.1, 1))),
            ("list_or_null", []),
        ]
        for fact, (column, value) in enumerate(changes, 1):
            self.rewrite("everything", with_value(fact, column, value))
        self.assertEqual(
            self.checked(Extent(examples=20)).streams[0].examples,
            tuple(
                Example("changed", fact, 0, (column,))
                for fact, (column, _) in enumerate(changes, 1)
            ),
        )


class CheckOfALossySource(LakeCase):
    """Real servers delete rows that they have sent."""

    stream = "receipts"

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.dsn = await foreign_database("1.163.2", self)
        source = SynapseDatabase(BlockingDatabase(self.dsn, "tests"), 0.0)
        self.addCleanup(source.close)
        self.source = source
        self.lake = Lake.open_or_create(Path(self.mktemp()), source.server, source.is_lossy)

    def test_deleted_rows_are_counted_as_gone_and_the_rest_is_compared(self) -> None:
        stream = self.stream
        table = self.land(stream, self.source.observe([stream])[stream].bound)
        ids = sorted(set(self.ids(table)))
        self.assertGreater(len(ids), 4)
        whole = self.checked().streams[0]
        self.assertEqual((whole.equal, whole.gone, whole.source_rows), (True, 0, whole.lake_rows))
        self.sql("DELETE FROM receipts_linearized WHERE stream_id = %s", ids[0])
        after = self.checked().streams[0]
        self.assertEqual((after.equal, after.gone), (True, 1))
        self.rewrite(stream, twice(ids[1]))
        self.rewrite(stream, without(ids[2]))
        self.rewrite(stream, with_value(ids[3], "user_id", "@nobody:here"))
        found = self.checked().streams[0]
        self.assertEqual(found.gone, 1)
        self.assertEqual(
            found.examples,
            (
                Example("doubled", ids[1], 0),
                Example("missing", ids[2], None),
                Example("changed", ids[3], None, ("user_id",)),
            ),
        )

    def ids(self, table: Any) -> list[int]:
        return [
            each
            for file in table.files
            for each in pq.read_table(table.path_of(file)).column("stream_id").to_pylist()
        ]
