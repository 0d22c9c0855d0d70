"""How the rows of jobs are shown in a terminal, and printed as JSON."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import Any
from unittest import TestCase

from pyspark.sql import types as t

from synrepl.cli.lake.job_rows import plain_cell, show_rows, with_json_text
from synrepl.pipeline.rooms.page.document import Heading, table

_SCHEMA = t.StructType(
    [t.StructField("total", t.DoubleType()), t.StructField("json", t.BinaryType())]
)


def shown(*rows: dict[str, Any]) -> str:
    """What a terminal shows of rows."""
    out = StringIO()
    with redirect_stdout(out):
        show_rows("title", _SCHEMA, [with_json_text(row) for row in rows], 0)
    return out.getvalue()


class Cells(TestCase):
    def test_counts_have_no_decimals(self) -> None:
        text = shown({"total": 10_000.0, "json": None}, {"total": 1.5, "json": None})
        self.assertIn("10,000 ", text)
        self.assertNotIn("10,000.0", text)
        self.assertIn("1.500", text)
        page = table([Heading("total", True)], [(10_000.0,), (1.5,)])
        self.assertIn(">10,000<", page)
        self.assertIn(">1.5<", page)

    def test_numbers_that_are_none_are_shown_as_they_are(self) -> None:
        text = shown({"total": float("nan"), "json": None}, {"total": float("inf"), "json": None})
        self.assertIn("nan", text)
        self.assertIn("inf", text)

    def test_json_is_text_where_it_is_utf_8(self) -> None:
        row = {"total": 1.0, "json": '{"body":"ö"}'.encode(), "digest": b"{}"}
        self.assertIn('{"body":"ö"}', shown(row))
        cells = {name: plain_cell(cell) for name, cell in with_json_text(row).items()}
        self.assertEqual(cells, {"total": 1.0, "json": '{"body":"ö"}', "digest": "7b7d"})
        broken = with_json_text({"json": bytearray(b"\xff{")})
        self.assertEqual(plain_cell(broken["json"]), "ff7b")
        self.assertEqual(with_json_text({"json": None, "n": 1}), {"json": None, "n": 1})
