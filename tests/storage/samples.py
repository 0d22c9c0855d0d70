"""Streams and rows for the tests of storage."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from synrepl.streams.columns import ColumnType, row_columns
from synrepl.streams.declared import declare
from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.row import Row
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.streams.synapse.backfill import BACKFILL

#: Precedes statements by which a superuser changes facts, which is forbidden otherwise.
TAMPERING = "SET session_replication_role = replica"

#: Short facts for most tests.
NOTES = declare("notes", {"text": "text", "n": "bigint?"})

#: Every column type, nullable and not.
EVERYTHING = declare(
    "everything",
    {
        "text": "text",
        "whole": "bigint",
        "flag": "boolean",
        "real": "double",
        "doc": "json",
        "list": "text[]",
        "text_or_null": "text?",
        "whole_or_null": "bigint?",
        "flag_or_null": "boolean?",
        "real_or_null": "double?",
        "doc_or_null": "json?",
        "list_or_null": "text[]?",
    },
)

#: Columns with names that statements use, too.
NAMED = declare("named", {"fact": "text", "ids": "bigint?", "cells": "text?", "ordinal": "bigint?"})

STREAMS = (*SYNAPSE_STREAMS, NOTES, EVERYTHING, NAMED)

#: The streams of most tests; a database with all streams takes longer to copy.
FEW = (NOTES, EVERYTHING, BACKFILL)

TEXTS = [
    "",
    "plain",
    "a\tb\nc\rd",
    "\\",
    "\\N",
    "\\.",
    "\\t \\\\",
    'it\'s "quoted" $1 $$ ; --',
    "50% %s %(x)s %%",
    '{a,"b"}',
    "NULL",
    "é 漢字 🎉 \u2028\u0085\x01",
    " both ends ",
]
NUMBERS = [0, 1, -1, 2**63 - 1, -(2**63), 2**31, -5]
FLAGS = [True, False]
REALS = [0.0, -0.5, 1e300, 5e-324, 3.141592653589793, 1.0, -1e22]
DOCUMENTS: list[Any] = [
    {},
    [],
    "text\t\\ 'quoted'",
    {"a": [1, 2.5, None, True, {"b\n": "漢"}], "": "\\"},
    2**63,
    0,
    False,
    [None],
    None,
]
LISTS = [[], [""], ["a", "b c"], ["\\", '"', ",", "{}", "NULL", "\t\n", "漢"]]

VALUES: dict[ColumnType, list[Any]] = {
    ColumnType.TEXT: TEXTS,
    ColumnType.BIGINT: NUMBERS,
    ColumnType.BOOLEAN: FLAGS,
    ColumnType.DOUBLE: REALS,
    ColumnType.JSON: DOCUMENTS,
    ColumnType.TEXT_ARRAY: LISTS,
}


def note(text: str, n: int | None = None) -> Row:
    """A row of :data:`NOTES`."""
    return NOTES.kinds[UNTAGGED](text, n)


def rows_of(stream: Stream, how_many: int = 14) -> list[Row]:
    """Rows of every kind, with every awkward value and null wherever it may be."""
    made: list[Row] = []
    for row in stream.kinds.values():
        cells = [
            cycle([*VALUES[column.type], *([None] if column.nullable else [])])
            for column in row_columns(row)
        ]
        for skip, column in enumerate(cells):  # so that they do not all start with the same cell
            for _ in range(skip):
                next(column)
        for _ in range(how_many):
            made.append(
                row(
                    *(
                        _fitting(row, f, next(c))
                        for f, c in zip(row.__struct_fields__, cells, strict=True)
                    )
                )
            )
    return made


def _fitting(row: type[Row], field: str, value: Any) -> Any:
    """A JSON column of the stream of caches only holds lists."""
    if row.__annotations__[field] == "list[Json] | None" and value is not None:
        return [value]
    return value
