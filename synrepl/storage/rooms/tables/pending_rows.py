"""Rows and statements that are collected, and sent in as few round trips as possible.

A transaction that persists events writes to a dozen tables. One statement per table would cost a round trip
each, which is most of the time of a small batch. So few rows become part of one script, and many rows
of a table are sent by COPY.

The few rows of a table are one JSON parameter of a prepared statement. With a parameter for each cell, the statement
would be another one for each number of rows, and PostgreSQL would parse and plan it each time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, cast

from synrepl.storage.database import DeferredScript, PlannedOnce, Transaction
from synrepl.storage.json_rows import json_rows

#: From this number of rows of a table on, COPY with its own round trip is quicker.
COPY_ROWS = 24

#: Rows that are made into one text for COPY.
_BLOCK_ROWS = 100

_INTEGERS, _STRINGS = {int}, {str}

#: A cell: None, an integer, a truth value, text, bytes, or a list of integers or texts.
RowCells = tuple[object, ...]


class RoomTable(NamedTuple):
    """A table that rows are added to.

    :ivar columns: their names, in the order of the cells
    """

    name: str
    columns: str


class PendingRows:
    """Collects rows and statements until :meth:`flush`.

    The order among tables and statements is not kept, so they must not depend on one another.
    """

    def __init__(self) -> None:
        self._rows: dict[RoomTable, list[RowCells]] = {}
        self._statements: list[str] = []
        self._params: list[object] = []

    def add(self, table: RoomTable, row: RowCells) -> None:
        """Add a row."""
        self._rows.setdefault(table, []).append(row)

    def extend(self, table: RoomTable, rows: Iterable[RowCells]) -> None:
        """Add rows."""
        self._rows.setdefault(table, []).extend(rows)

    def run(self, statement: str, params: Sequence[object] = ()) -> None:
        """Add a statement whose result nobody needs.

        :param statement: arrays among the parameters must be cast; there should be few different texts
        """
        self._statements.append(PlannedOnce(statement))
        self._params += [array_text(each) if isinstance(each, list) else each for each in params]

    @property
    def are_few(self) -> bool:
        """Whether one script holds everything."""
        return all(len(rows) < COPY_ROWS for rows in self._rows.values())

    def flush(self, txn: Transaction) -> None:
        """Send everything, and forget it. Few rows and statements go with what is sent next.

        :raises BadValue: a cell has no counterpart; others are only refused when they are sent
        """
        rows, self._rows = self._rows, {}
        for table, cells in rows.items():
            if len(cells) >= COPY_ROWS:
                copy_rows(txn, table, cells)
            elif cells:
                self._insert(table, cells)
        statements, self._statements = self._statements, []
        params, self._params = self._params, []
        if statements:
            txn.execute(DeferredScript(statements), params)

    def _insert(self, table: RoomTable, rows: Sequence[RowCells]) -> None:
        insert = _insert_statement(table)
        names = insert.names
        objects = [dict(zip(names, row, strict=True)) for row in rows]
        self._statements.append(insert.statement)
        self._params.append(json_rows(table.name, objects, _binary_text))


class _InsertStatement(NamedTuple):
    """Inserts rows that are JSON objects.

    :ivar names: of their fields
    """

    statement: PlannedOnce
    names: tuple[str, ...]


@lru_cache(100)
def _insert_statement(table: RoomTable) -> _InsertStatement:
    rows = f"json_populate_recordset(NULL::{table.name}, %s)"
    statement = f"INSERT INTO {table.name} ({table.columns}) SELECT {table.columns} FROM {rows}"
    return _InsertStatement(PlannedOnce(statement), tuple(table.columns.split(", ")))


def _binary_text(cell: bytes) -> str:
    """Bytes as PostgreSQL reads them.

    :raises TypeError: for anything else
    """
    return rf"\x{bytes(cell).hex()}"


def copy_rows(txn: Transaction, table: RoomTable, rows: Iterable[RowCells]) -> int:
    """Send rows by COPY; returns their number."""
    return txn.copy_in(f"COPY {table.name} ({table.columns}) FROM STDIN", _copy_blocks(rows))


def _copy_blocks(rows: Iterable[RowCells]) -> Iterator[str]:
    """Rows as COPY's text, several at once."""
    text_of, is_special = _COPY.get, _SPECIAL.search
    left = iter(rows)
    while some := list(islice(left, _BLOCK_ROWS)):
        lines = [
            "\t".join(
                [
                    str(cell)
                    if type(cell) is int
                    else cell
                    if type(cell) is str and not is_special(cell)
                    else r"\N"
                    if cell is None
                    else text_of(type(cell), str)(cell)
                    for cell in row
                ]
            )
            for row in some
        ]
        lines.append("")
        yield "\n".join(lines)


def _copy_string(cell: str) -> str:
    return cell.translate(_ESCAPES) if _SPECIAL.search(cell) else cell


def _copy_list(cells: list[object]) -> str:
    if set(map(type, cells)) <= _INTEGERS:
        return f"{{{str(cells)[1:-1]}}}"
    return _copy_string(array_text(cells))


def array_text(cells: Collection[object]) -> str:
    """An array as text, which PostgreSQL reads as whatever type the column or the cast has.

    The driver would make an expression of it, with a node for each element to be parsed.
    """
    kinds = set(map(type, cells))
    if kinds <= _INTEGERS:
        return "{" + ",".join(map(str, cells)) + "}"
    if kinds == _STRINGS:
        texts = cast("Collection[str]", cells)
        if not _NEEDS_ESCAPE.search("".join(texts)):
            return '{"' + '","'.join(texts) + '"}'
    return "{" + ",".join(map(_element, cells)) + "}"


def _element(cell: object) -> str:
    if cell is None:
        return "NULL"
    if isinstance(cell, str):
        return '"' + cell.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(cell)


_NEEDS_ESCAPE = re.compile(r'["\\]')
_SPECIAL = re.compile(r"[\\\t\n\r]")
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})

#: By type; any other is written as Python does.
_COPY: dict[type, Callable[[Any], str]] = {
    type(None): lambda cell: r"\N",
    str: _copy_string,
    bool: lambda cell: "t" if cell else "f",
    bytes: lambda cell: r"\\x" + cell.hex(),
    list: _copy_list,
}
