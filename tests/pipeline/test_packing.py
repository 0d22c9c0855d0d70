"""Rows that are read in groups, over a real database, compared with the same rows read one by one."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import psycopg2
import pyarrow as pa
from psycopg2 import extensions
from twisted.trial.unittest import SynchronousTestCase

from synrepl.core.tokens import Range
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.source.database.packing import (
    CellForm,
    ColumnStatistics,
    Statistics,
    packed,
    rows_per_group,
)
from synrepl.pipeline.source.database.sql import Scan
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.pipeline.source.plan.chunks import ScanChunk, plan_chunks
from synrepl.pipeline.source.reading.chunk_reader import ChunkReader, ReadFailed
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.pipeline.source.writer_ranges import WriterRanges
from synrepl.positions.vector import PositionVector
from synrepl.streams.columns import Column, ColumnType
from tests.storage.postgres import PostgresCase, prepare
from tests.storage.samples import VALUES

_TEXT = Column("text", ColumnType.TEXT, False)
_LIST = Column("list", ColumnType.TEXT_ARRAY, False)


class GroupSizes(SynchronousTestCase):
    """How many tokens a group has."""

    def check(self, expected: int, *, width: int = 128, tokens: int = 10**6, rows: int) -> None:
        found = rows_per_group(
            [_TEXT], {"text": ColumnStatistics(width)}, Range(5, 5 + tokens), rows
        )
        self.assertEqual(found, expected)

    def test_long_rows_come_in_smaller_groups(self) -> None:
        self.check(8192, rows=10**6)
        self.check(1024, width=1024, rows=10**6)
        self.check(0, width=20_000, rows=10**6)

    def test_facts_of_several_rows_come_in_smaller_groups(self) -> None:
        self.check(819, rows=10**7)
        self.check(1, rows=10**11)

    def test_few_rows_in_many_tokens_are_read_one_by_one(self) -> None:
        self.check(8192, rows=250_000)
        self.check(0, rows=249_999)

    def test_arrays_and_rows_without_columns_are_read_one_by_one(self) -> None:
        self.assertEqual(rows_per_group([_TEXT, _LIST], {}, Range(0, 10), 10), 0)
        self.assertEqual(rows_per_group([], {}, Range(0, 10), 10), 0)

    def test_rows_of_very_many_columns_are_read_one_by_one(self) -> None:
        flags = [Column(f"flag{n}", ColumnType.BOOLEAN, True) for n in range(23)]
        for columns, packs in (flags, True), ([*flags, *flags[:1]], False), ([_TEXT] * 99, True):
            found = rows_per_group(columns, {}, Range(0, 10), 10)
            self.assertEqual(found > 0, packs, len(columns))


class ReadingGroups(PostgresCase):
    """Groups have the rows of the table."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.source = SynreplDatabase(BlockingDatabase(self.dsn, "tests"))
        self.addCleanup(lambda: self.source.close())
        self.reader = ChunkReader(self.dsn, "reader")
        self.columns = [
            column
            for column in self.source.stream_schema("everything").columns
            if column.type is not ColumnType.TEXT_ARRAY
        ]

    def insert(self, rows: Sequence[tuple[int, int, dict[str, Any]]]) -> None:
        connection = self.connect()
        for stream_id, row_no, cells in rows:
            cells = {
                column.name: cells.get(
                    column.name, None if column.nullable else _DEFAULT[column.type]
                )
                for column in self.source.stream_schema("everything").cells
            }
            names = ", ".join(cells)
            self.sql(
                f"INSERT INTO synrepl.everything (stream_id, row_no, writer, {names})"
                f" VALUES (%s, %s, 'w'{', %s' * len(cells)})",
                stream_id,
                row_no,
                *cells.values(),
                on=connection,
            )

    def chunk(self, upto: int, tokens: int, known: Statistics | None = None) -> ScanChunk:
        (made,) = plan_chunks(
            self.source,
            {"everything": PositionVector({}, 0)},
            {"everything": PositionVector({}, upto)},
            {"everything": [column.name for column in self.columns]},
            10**9,
        )
        scan = packed(made.scan, self.columns, known or {}, tokens)
        return ScanChunk(
            made.stream, 0, upto, made.scan, scan, made.raw, made.identity_sql, None, 0
        )

    def check(self, upto: int, tokens: int, known: Statistics | None = None) -> list[int]:
        """Read by groups and row by row, compare, and return the sizes of batches."""
        schema = arrow_schema(self.columns)
        chunk = self.chunk(upto, tokens, known)
        found = list(self.reader.batches(chunk, schema))
        for batch in found:
            batch.validate(full=True)
        alone = list(self.reader.batches(chunk.row_by_row(), schema))
        self.assertEqual(
            repr(pa.Table.from_batches(found, schema).to_pylist()),
            repr(pa.Table.from_batches(alone, schema).to_pylist()),
        )
        self.assertTrue(sum(batch.num_rows for batch in found))
        return [batch.num_rows for batch in found]

    def test_every_type_with_every_awkward_value_is_read(self) -> None:
        random = Random(11)
        rows = []
        for stream_id in range(1, 120):
            if random.random() < 0.2:
                continue
            for row_no in range(random.choice((1, 1, 3))):
                cells = {}
                for column in self.columns[3:]:
                    values = [*VALUES[column.type], *_MORE.get(column.type, ())]
                    if column.type is ColumnType.JSON:
                        values = ["{}", "[1, null]", '"\\u0001"', "null"]
                    cells[column.name] = random.choice(values)
                    if column.nullable and random.random() < 0.4:
                        cells[column.name] = None
                rows.append((stream_id, row_no, cells))
        self.insert(rows)
        for tokens in (1, 2, 7, 50, 500):
            self.check(130, tokens)

    def test_a_group_is_one_batch_in_order(self) -> None:
        texts = ["a", "", "b", "c\x01d", "e", "f", "g"]
        self.insert([(n, 0, {"text": text}) for n, text in enumerate(texts, 1)])
        self.assertEqual(self.check(7, 2), [2, 2, 2, 1])

    def test_texts_of_one_length_are_told_apart(self) -> None:
        for number, texts in enumerate((["ab", "cd", "ef"], ["", "", ""], ["a\x01", "cd", "ef"])):
            first = 10 * number
            self.insert([(first + n, 0, {"text": text}) for n, text in enumerate(texts, 1)])
            self.check(first + 3, 10)

    def test_statistics_say_what_to_expect_and_may_be_wrong(self) -> None:
        rows: list[tuple[int, int, dict[str, Any]]] = [
            (n, 0, {"text_or_null": "a", "whole_or_null": None, "flag_or_null": True})
            for n in range(1, 5)
        ]
        rows += [(5, 0, {"text_or_null": "a", "whole_or_null": 7, "flag_or_null": None})]
        rows += [(6, 0, {"text_or_null": None, "whole_or_null": 8}), (7, 1, {}), (7, 2, {})]
        self.insert(rows)
        only = {ColumnType.TEXT: "a", ColumnType.BIGINT: "8", ColumnType.BOOLEAN: "t"}
        for nulls, value in (0.0, False), (0.0, True), (1.0, False):
            known = {
                column.name: ColumnStatistics(
                    nulls=nulls, values=1.0, only=only.get(column.type) if value else None
                )
                for column in self.columns
            }
            for tokens in 1, 2, 4, 10:
                self.check(7, tokens, known)

    def test_each_cell_that_is_not_as_the_statistics_say_is_noticed(self) -> None:
        plain = {"text": "a", "text_or_null": "b", "whole_or_null": 7, "flag_or_null": True,
                 "flag": False}  # fmt: skip
        known = {
            "writer": ColumnStatistics(nulls=0.0, values=1.0, only="w"),
            "row_no": ColumnStatistics(nulls=0.0, values=1.0, only="0"),
            "text": ColumnStatistics(nulls=0.0, values=1.0, only="a"),
            "text_or_null": ColumnStatistics(nulls=0.0, values=1.0, only="b"),
            "whole_or_null": ColumnStatistics(nulls=0.0, values=1.0, only="7"),
            "flag_or_null": ColumnStatistics(nulls=0.0, values=1.0, only="t"),
            "flag": ColumnStatistics(nulls=0.0, values=1.0, only="f"),
            "real_or_null": ColumnStatistics(nulls=1.0, values=0.0),
        }
        odd: list[dict[str, Any]] = [
            {"text": "A"}, {"text": ""}, {"text_or_null": None}, {"text_or_null": "b "},
            {"whole_or_null": 0}, {"whole_or_null": None}, {"flag_or_null": None},
            {"flag_or_null": False}, {"flag": True}, {"real_or_null": 0.0},
        ]  # fmt: skip
        rows = [(3 * n + 1, 0, plain) for n in range(len(odd))]
        rows += [(3 * n + 2, 0, {**plain, **each}) for n, each in enumerate(odd)]
        self.insert([*rows, (40, 0, plain), (40, 1, plain)])
        for tokens in 1, 2, 5, 100:
            self.check(42, tokens, known)

    def test_the_rest_of_a_chunk_is_read_in_groups_without_statistics_that_are_wrong(self) -> None:
        texts = ["a", "a", "b", "a", "a", "a", "a"]
        self.insert([(n, 0, {"text": text}) for n, text in enumerate(texts, 1)])
        known = {"text": ColumnStatistics(nulls=0.0, values=1.0, only="a")}
        self.assertEqual(self.check(7, 2, known), [2, 2, 2, 1])
        refused = Scan("SELECT refused", False)
        chunk = msgspec.structs.replace(self.chunk(7, 2, known), scan=refused)
        schema = arrow_schema(self.columns)
        found = pa.Table.from_batches(self.reader.batches(chunk, schema), schema)
        self.assertEqual(found.column("text").to_pylist(), texts)

    def test_a_connection_is_used_again_after_a_statement_that_was_left(self) -> None:
        self.sql(
            "INSERT INTO synrepl.notes SELECT n, 0, 'w', repeat('long', 1000), nullif(n, 2)"
            " FROM generate_series(1, 5000) n"
        )
        known = {"n": ColumnStatistics(nulls=0.0)}
        columns = ["stream_id", "text", "n"]
        schemas = {each.name: each for each in self.source.stream_schema("notes").columns}
        wanted = [schemas[name] for name in columns]
        start, end = PositionVector({}, 0), PositionVector({}, 5000)
        (made,) = plan_chunks(self.source, {"notes": start}, {"notes": end}, {"notes": columns})
        scan = packed(made.scan, wanted, known, 100)
        chunk = msgspec.structs.replace(made, packed=scan)
        for reading in self.reader.reading_together(), self.reader.keeping_connection():
            with reading:
                for _ in range(2):
                    batches = self.reader.batches(chunk, arrow_schema(wanted))
                    self.assertEqual(sum(each.num_rows for each in batches), 5000)

    def test_a_null_where_the_statistics_have_none_is_noticed(self) -> None:
        self.insert([(1, 0, {"whole_or_null": 7}), (2, 0, {}), (4, 0, {"text_or_null": "a\x01b"})])
        self.insert([(5, 0, {"text_or_null": None})])
        for column in "whole_or_null", "text_or_null":
            self.check(6, 3, {column: ColumnStatistics(nulls=0.0)})

    def test_texts_of_the_expected_length_have_nothing_between_them(self) -> None:
        self.insert([(n, 0, {"text": f"{n}\x01", "text_or_null": "é"}) for n in range(1, 4)])
        known = {"text": ColumnStatistics(length=2), "text_or_null": ColumnStatistics(length=2)}
        self.assertEqual(self.check(3, 2, known), [2, 1])
        self.insert([(4, 0, {"text": "44"}), (5, 0, {"text": "", "text_or_null": "e"})])
        self.insert([(6, 0, {"text": "long", "text_or_null": "ee"})])
        for tokens in 1, 2, 5, 10:
            self.check(6, tokens, known)

    def test_lengths_of_texts_are_asked_for_before_long_reads(self) -> None:
        self.sql(
            "INSERT INTO synrepl.notes SELECT n, 0, 'w', md5(n::text), NULL"
            " FROM generate_series(1, 99) n"
        )
        self.sql("ANALYZE synrepl.notes")
        self.source.refresh()
        scan = Scan("SELECT", False)
        ranges = WriterRanges.between(PositionVector({}, 0), PositionVector({}, 99))
        for rows, length in (99_999, None), (100_000, 32):
            made = self.source.packed_scan("notes", ranges, ["text"], scan, rows)
            assert made is not None
            self.assertEqual([each.length for each in made.columns], [length])

    def test_columns_are_read_in_any_order(self) -> None:
        """As the option ``columns`` gives them."""
        self.insert([(n, n % 2, {"flag": n % 3 == 0, "whole_or_null": n}) for n in range(1, 10)])
        for _ in range(3):
            self.columns = [*self.columns[-5:], *self.columns[:-5]]
            self.check(9, 4)
        wanted = ("flag", "stream_id")
        self.columns = sorted(
            (column for column in self.columns if column.name in wanted),
            key=lambda column: wanted.index(column.name),
        )
        self.check(9, 4)

    async def test_lengths_are_not_relied_on_if_texts_have_other_bytes_at_the_server(self) -> None:
        name = "one_byte_each"
        dsn = extensions.make_dsn(self.dsn, dbname=name)
        self.sql(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'WIN1252' LC_COLLATE 'C' LC_CTYPE 'C'"
        )
        self.addCleanup(self.sql, f"DROP DATABASE {name} (FORCE)")
        await prepare(dsn)
        connection = psycopg2.connect(dsn)
        self.addCleanup(connection.close)
        connection.autocommit = True
        connection.set_client_encoding("UTF8")
        texts = [*("ab" * 50), "", "é", "c"]
        self.sql("INSERT INTO synrepl.notes SELECT n, 0, 'w', substr('ab', n % 2 + 1, 1), NULL"
                 " FROM generate_series(1, 100) n", on=connection)  # fmt: skip
        self.sql("ANALYZE synrepl.notes", on=connection)
        for number, text in enumerate(texts[100:], 101):
            self.sql("INSERT INTO synrepl.notes VALUES (%s, 0, 'w', %s, NULL)", number, text,
                     on=connection)  # fmt: skip
        source = SynreplDatabase(BlockingDatabase(dsn, "tests"))
        self.addCleanup(source.close)
        columns = ["stream_id", "text"]
        start, end = PositionVector({}, 0), PositionVector({}, 103)
        (made,) = plan_chunks(source, {"notes": start}, {"notes": end}, {"notes": columns})
        scan = source.packed_scan(
            "notes", WriterRanges.between(start, end), columns, made.scan, 100_000
        )
        assert scan is not None
        chunk = msgspec.structs.replace(made, packed=scan)
        by_name = {each.name: each for each in source.stream_schema("notes").columns}
        schema = arrow_schema(by_name[each] for each in columns)
        found = pa.Table.from_batches(ChunkReader(dsn).batches(chunk, schema), schema)
        self.assertEqual(found.column("text").to_pylist()[100:], texts[100:])

    def test_stream_ids_far_apart_are_told(self) -> None:
        self.insert([(n, 0, {"flag": n % 2 == 0}) for n in (1, 2, 30_000, 32_768, 32_769)])
        self.check(32_769, 32_768)

    def test_statistics_are_read(self) -> None:
        self.sql(
            "INSERT INTO synrepl.notes SELECT n, 0, 'w', 'n', NULL FROM generate_series(1, 99) n"
        )
        self.sql("ANALYZE synrepl.notes")
        self.source.refresh()
        columns = ["row_no", "text", "n"]
        start, end = PositionVector({}, 0), PositionVector({}, 99)
        (made,) = plan_chunks(self.source, {"notes": start}, {"notes": end}, {"notes": columns})
        assert made.packed is not None
        self.assertEqual(
            [(each.form, each.value) for each in made.packed.columns],
            [(CellForm.SAME, 0), (CellForm.SAME, "n"), (CellForm.SAME, None)],
        )
        schema = arrow_schema(self.source.stream_schema("notes").columns)
        wanted = pa.schema([schema.field(name) for name in columns])
        (batch,) = self.reader.batches(made, wanted)
        self.assertEqual(batch.to_pylist(), [{"row_no": 0, "text": "n", "n": None}] * 99)

    def test_row_numbers_are_zero_even_where_they_might_be_null(self) -> None:
        """The schema of a reader may allow NULL where the table does not."""
        self.insert([(1, 0, {}), (2, 0, {}), (2, 1, {})])
        schema = arrow_schema(column._replace(nullable=True) for column in self.columns)
        for known in {}, {"row_no": ColumnStatistics(nulls=0.0, values=1.0, only="0")}:
            for tokens in 1, 5:
                found = self.reader.batches(self.chunk(2, tokens, known), schema)
                numbers = pa.Table.from_batches(found, schema).column("row_no").to_pylist()
                self.assertEqual(numbers, [0, 0, 1])

    def test_groups_are_what_is_read(self) -> None:
        """Not by chance the rows of the other statement."""
        self.insert([(1, 0, {"text": "a"})])
        chunk = msgspec.structs.replace(self.chunk(1, 2), scan=Scan("SELECT refused", False))
        schema = arrow_schema(self.columns)
        (batch,) = self.reader.batches(chunk, schema)
        self.assertEqual(batch.column("text").to_pylist(), ["a"])
        self.assertRaises(ReadFailed, list, self.reader.batches(chunk.row_by_row(), schema))

    def test_streams_are_planned_in_groups(self) -> None:
        self.sql("INSERT INTO synrepl.notes SELECT n, 0, 'w', 'n', n FROM generate_series(1, 9) n")
        for stream, packs in ("notes", True), ("everything", False), ("backfill", False):
            columns = [column.name for column in self.source.stream_schema(stream).columns]
            start, end = PositionVector({}, 0), PositionVector({}, 9)
            (made,) = plan_chunks(self.source, {stream: start}, {stream: end}, {stream: columns})
            self.assertEqual(made.packed is not None, packs, stream)

    def test_empty_texts_and_zeros_are_not_null(self) -> None:
        self.insert(
            [
                (1, 0, {"text_or_null": ""}),
                (2, 0, {"text_or_null": None, "whole_or_null": 0}),
                (3, 0, {"real_or_null": 0.0}),
                (4, 0, {"text_or_null": "", "flag_or_null": False}),
            ]
        )
        self.assertEqual(self.check(4, 100), [4])
        self.check(4, 1)

    def test_long_texts_are_not_gathered(self) -> None:
        """A group of a million tokens has texts of at most 64 bytes."""
        self.insert([(n, 0, {"text": "x" * (62 + n)}) for n in range(1, 6)])
        self.check(5, 1 << 20)

    def test_a_group_with_many_rows_is_read_row_by_row(self) -> None:
        self.insert([(1, n, {"text": f"t{n}"}) for n in range(3)])
        self.assertEqual(self.check(2, 1), [3])
        self.insert([(2, n, {"text": f"t{n}"}) for n in range(9)])
        self.check(2, 1)
        self.check(2, 2)


_DEFAULT: dict[ColumnType, Any] = {
    ColumnType.TEXT: "",
    ColumnType.BIGINT: 0,
    ColumnType.BOOLEAN: False,
    ColumnType.DOUBLE: 0.0,
    ColumnType.JSON: "{}",
    ColumnType.TEXT_ARRAY: [],
}

_MORE: dict[ColumnType, list[Any]] = {
    ColumnType.TEXT: ["\x01", "\x02", "é" * 300],
    ColumnType.DOUBLE: [float("nan"), float("inf"), -0.0, -5e-324],
}
