"""Streams that a user declares."""

from __future__ import annotations

from unittest import TestCase

from synrepl.core.names import BadName
from synrepl.streams.columns import Column, ColumnType, UnknownColumnType, columns
from synrepl.streams.declared import MAX_COLUMNS, BadDeclaration, declare
from synrepl.streams.definition import Generation
from synrepl.streams.rows import BadRow, RowCodec


class DeclareTests(TestCase):
    def test_makes_a_stream_like_any_other(self) -> None:
        stream = declare("print_jobs", {"id": "bigint", "note": "text?"})
        row = stream.kinds[""]
        self.assertEqual(row.__name__, "PrintJobsRow")
        self.assertEqual(
            columns(stream),
            (Column("id", ColumnType.BIGINT, False), Column("note", ColumnType.TEXT, True)),
        )
        codec = RowCodec(stream)
        self.assertEqual(codec.encoder(Generation.LEGACY)(row(7, "x")), b'[7,"x"]')
        self.assertEqual(codec.decode(b'[7,"x"]'), row(7, "x"))
        with self.assertRaises(AttributeError):
            row(7).id = 8  # type: ignore[attr-defined]

    def test_it_may_gain_nullable_columns(self) -> None:
        before = RowCodec(declare("s", {"a": "text?", "b": "text"}))
        after = RowCodec(declare("s", {"a": "text?", "b": "text", "c": "json?", "d": "text[]?"}))
        line = before.encoder(Generation.MODERN)(before.decode(b'[null,"x"]'))
        self.assertEqual(after.cells(after.decode(line)), (None, "x", None, None))
        with self.assertRaises(BadRow):
            after.decode(b"[null]")

    def test_accepts_names_that_python_reserves(self) -> None:
        codec = RowCodec(declare("class", {"class": "text", "self": "text", "def": "text?"}))
        self.assertEqual(codec.cells(codec.decode(b'["a","b"]')), ("a", "b", None))

    def test_refuses_bad_declarations(self) -> None:
        for name in ("", "Jobs", "1st", "a b", "x" * 46, 'a"b'):
            with self.assertRaises(BadName):
                declare(name, {"a": "text"})
        for column in ("", "A", "a-b", "x" * 46):
            with self.assertRaises(BadName):
                declare("s", {column: "text"})
        with self.assertRaisesRegex(UnknownColumnType, "did you mean bigint"):
            declare("s", {"a": "bigin"})
        ours = ("stream_id", "row_no", "writer", "kind")
        for column in (*ours, "ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"):
            with self.assertRaisesRegex(BadDeclaration, f"'{column}' is reserved"):
                declare("s", {"a": "text", column: "text"})
        for name in ("all", "batch", "followers", "writers_number"):
            with self.assertRaisesRegex(BadDeclaration, "reserved"):
                declare(name, {"a": "text"})
        for count in (0, MAX_COLUMNS + 1):
            with self.assertRaisesRegex(BadDeclaration, f"has {count} columns"):
                declare("s", {f"c{n}": "text" for n in range(count)})
        declare("s", {f"c{n}": "text" for n in range(MAX_COLUMNS)})
