"""A value is stored, or refused, in the same way whether it is written alone, with a few others or with many."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from synrepl.core.jsons import Fractional
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import PendingRows, RoomTable
from synrepl.storage.store import BadValue, Draft, WriterLease
from synrepl.streams.definition import UNTAGGED, Fact
from synrepl.streams.row import Row
from tests.storage.postgres import PostgresCase
from tests.storage.samples import EVERYTHING

#: Numbers of rows that are written in different ways.
COUNTS = (1, 2, 23, 24)

_NAMES = EVERYTHING.kinds[UNTAGGED].__struct_fields__


#: Text whose ``str()`` is something else.
Colour = Enum("Colour", {"RED": "red"}, type=str)


class CellsOfFacts(PostgresCase):
    """Facts of one row each."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.alpha = self.process("alpha")
        self.lease: WriterLease = await self.alpha.store.open_writer("w1", [EVERYTHING])

    def row(self, **cells: object) -> Row:
        plain: dict[str, Any] = {"text": "", "whole": 0, "flag": False, "real": 0.5}
        nulls = dict.fromkeys(name for name in _NAMES if name.endswith("_or_null"))
        return EVERYTHING.kinds[UNTAGGED](**{**plain, "doc": {}, "list": [], **nulls, **cells})

    def stored(self, column: str) -> list[str]:
        """Distinct values of a column, as text; all rows are removed."""
        values = self.sql(f"SELECT array_agg(DISTINCT {column}::text) FROM synrepl.everything")
        self.sql("SET session_replication_role = replica; DELETE FROM synrepl.everything")
        return list(values)

    async def append(self, row: Row, count: int) -> None:
        await self.lease.append(EVERYTHING, [Draft([[row]] * count)], 0)

    async def test_a_value_is_the_same_however_many_rows_are_written(self) -> None:
        for column, value, text in (
            ("text", Colour.RED, "red"),
            ("real", -0.0, "-0"),
            ("real", 5, "5"),
            ("doc", {"b": 1, "a": -0.0, "n": 10**30}, '{"b":1,"a":-0.0,"n":1' + "0" * 30 + "}"),
        ):
            row = self.row(**{column: value})
            for count in COUNTS:
                await self.append(row, count)
                self.assertEqual(self.stored(column), [text], count)
            for count in (1, 2, 3):
                (token,) = await self.lease.reserve(EVERYTHING, 1, 0)
                await self.lease.write(EVERYTHING, [Fact(token, "w1", (row,) * count)])
                self.assertEqual(self.stored(column), [text], count)

    async def test_what_no_column_holds_is_refused_by_name(self) -> None:
        for cells in ({"text": "\ud800"}, {"text": "\0"}, {"list": ["\ud800"]}, {"whole": 2**64}):
            for count in (1, 2, 23):
                with self.assertRaises(BadValue):
                    await self.append(self.row(**cells), count)


class CellsOfRooms(PostgresCase):
    """Rows of a table that has the types of the tables of rooms."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.alpha = self.process("alpha")
        self.connection = self.connect()
        self.sql(
            "CREATE TABLE samples (number bigint, name text, flag boolean, data bytea,"
            " names text[], numbers bigint[])",
            on=self.connection,
        )

    async def write(self, column: str, value: object, count: int) -> object:
        """What is stored of a value in rows that have it alone."""
        self.sql("TRUNCATE samples", on=self.connection)
        table = RoomTable("samples", f"{column}, flag" if column != "flag" else "flag, number")

        def work(txn: Transaction) -> None:
            rows = PendingRows()
            rows.extend(table, [(value, None)] * count)
            rows.flush(txn)

        await self.alpha.database.run("write samples", work)
        return self.sql(
            f"SELECT array_agg(DISTINCT {column}::text) FROM samples", on=self.connection
        )

    async def test_a_value_is_the_same_however_many_rows_are_written(self) -> None:
        names = ["", None, '"', "\\", "{}", ",", "NULL", "null", "\t\n\r", "漢"]
        values: Sequence[tuple[str, object]] = (
            *(("number", each) for each in (0, -(2**63), 2**63 - 1, None)),
            *(("name", each) for each in ("", "\\u0000", "\\N", "\t\n\r\"'\\", "null", "{}", None)),
            *(("flag", each) for each in (True, False, None)),
            *(("data", each) for each in (b"", bytes(range(256)), b"\\x00", None)),
            *(("names", each) for each in ([], names, ["a"], None)),
            *(("numbers", each) for each in ([], [1, None, -(2**63)], None)),
        )
        for column, value in values:
            found = [await self.write(column, value, count) for count in COUNTS]
            self.assertEqual(found, [found[0]] * len(found), (column, value))
            if column == "name":
                self.assertEqual(found[0], [value])

    async def test_what_no_column_holds_is_refused_by_name(self) -> None:
        for column, value in (
            *(("name", each) for each in ("\0", "\ud800")),
            *(("number", each) for each in (2**63, 2**64, 1.5, True, Fractional(1.0))),
            *(("names", each) for each in (["\0"], ["\ud800"])),
            *(("numbers", each) for each in ([2**63], [2**64])),
        ):
            for count in COUNTS[:3]:
                with self.assertRaises(BadValue, msg=repr(value)):
                    await self.write(column, value, count)
