"""Columns follow from row classes."""

from __future__ import annotations

from datetime import datetime
from unittest import TestCase

from synrepl.streams.columns import (
    Column,
    ColumnConflict,
    ColumnType,
    UnknownColumnType,
    UnsupportedField,
    columns,
    parse_type,
    row_columns,
    sql_input,
)
from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.row import BigInt, Json, Row
from synrepl.streams.synapse.caches import CACHES
from synrepl.streams.synapse.events import EVENTS


class AllTypes(Row, frozen=True):
    """One field of each type, and the ways to be more exact about JSON."""

    a: str
    b: BigInt
    c: bool
    d: float
    e: Json
    f: list[str]
    g: dict[str, Json]
    h: list[Json] | None
    i: BigInt | None = None


class Dated(Row, frozen=True):
    """Has a field no column can hold."""

    at: datetime


class Plain(Row, frozen=True):
    """Has a whole number without bounds, which a bigint cannot hold."""

    n: int


class Text(Row, frozen=True):
    """Says that ``x`` is text."""

    x: str
    y: str


class Number(Row, frozen=True):
    """Says that ``x`` is a number."""

    x: BigInt


class OptionalText(Row, frozen=True):
    """Says that ``x`` may be null."""

    x: str | None


class ColumnTests(TestCase):
    def test_maps_every_type(self) -> None:
        self.assertEqual(
            [(c.name, c.type.sql, c.nullable) for c in row_columns(AllTypes)],
            [
                ("a", "text", False),
                ("b", "bigint", False),
                ("c", "boolean", False),
                ("d", "double precision", False),
                ("e", "json", False),
                ("f", "text[]", False),
                ("g", "json", False),
                ("h", "json", True),
                ("i", "bigint", True),
            ],
        )

    def test_a_field_without_a_column_type_is_refused(self) -> None:
        with self.assertRaisesRegex(UnsupportedField, "'at' of Dated"):
            row_columns(Dated)
        with self.assertRaisesRegex(UnsupportedField, "use str, BigInt"):
            row_columns(Plain)

    def test_the_columns_of_all_kinds_are_united(self) -> None:
        names = [column.name for column in columns(EVENTS)]
        self.assertEqual(names[:4], ["kind", "event_id", "room_id", "type"])
        self.assertEqual(names[-1], "outlier")
        by_name = {column.name: column for column in columns(EVENTS)}
        self.assertFalse(by_name["kind"].nullable)
        self.assertFalse(by_name["room_id"].nullable)  # in every kind
        self.assertTrue(by_name["event_id"].nullable)  # state-all has none
        self.assertTrue(by_name["rejected"].nullable)

    def test_a_column_is_nullable_when_one_kind_says_so(self) -> None:
        stream = Stream("s", {"a": Text, "b": OptionalText})
        self.assertEqual(columns(stream)[1], Column("x", ColumnType.TEXT, True))

    def test_kinds_that_disagree_are_refused(self) -> None:
        with self.assertRaisesRegex(ColumnConflict, "'x' of stream 's' is text .* bigint"):
            columns(Stream("s", {"a": Text, "b": Number}))

    def test_an_untagged_stream_has_no_kind(self) -> None:
        self.assertEqual(columns(Stream("s", {UNTAGGED: Number}))[0].name, "x")
        self.assertEqual(columns(CACHES)[1], Column("keys", ColumnType.JSON, True))


class TypeWordTests(TestCase):
    def test_parses_type_names(self) -> None:
        for type_ in ColumnType:
            self.assertEqual(parse_type(type_), (type_, False))
            self.assertEqual(parse_type(f"{type_}?"), (type_, True))

    def test_unknown_words_name_the_nearest(self) -> None:
        for word, near in {"Bigint": "bigint", "boolen?": "boolean", "text []": "text"}.items():
            with self.assertRaisesRegex(UnknownColumnType, f"did you mean {near}"):
                parse_type(word)
        for word in ("", "?", "text??", "x" * 1000):
            with self.assertRaises(UnknownColumnType):
                parse_type(word)


class SqlInputTests(TestCase):
    def convert(self, type_: ColumnType, nullable: bool, value: object) -> object:
        convert = sql_input(Column("x", type_, nullable))
        assert convert is not None
        return convert(value)

    def test_json_null_and_sql_null(self) -> None:
        self.assertEqual(self.convert(ColumnType.JSON, False, None), "null")
        self.assertIsNone(self.convert(ColumnType.JSON, True, None))
        self.assertEqual(self.convert(ColumnType.JSON, True, {"a": ["ü"]}), '{"a":["ü"]}')

    def test_writes_array_literals(self) -> None:
        self.assertEqual(self.convert(ColumnType.TEXT_ARRAY, False, []), "{}")
        self.assertEqual(
            self.convert(ColumnType.TEXT_ARRAY, False, ['a,"}', "\\", "", "NULL"]),
            r'{"a,\"}","\\","","NULL"}',
        )
        self.assertIsNone(self.convert(ColumnType.TEXT_ARRAY, True, None))

    def test_writes_numbers_with_a_fraction_as_text_with_their_sign(self) -> None:
        self.assertEqual(self.convert(ColumnType.DOUBLE, False, -0.0), "-0.0")
        self.assertEqual(self.convert(ColumnType.DOUBLE, False, 5e-324), "5e-324")
        self.assertIsNone(self.convert(ColumnType.DOUBLE, True, None))

    def test_other_values_are_passed_as_they_are(self) -> None:
        for type_ in (ColumnType.TEXT, ColumnType.BIGINT, ColumnType.BOOLEAN):
            self.assertIsNone(sql_input(Column("x", type_, False)))
