"""Mappings from the tables of Synapse to streams, as data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from synrepl.streams.definition import UNTAGGED

#: The column with the process that wrote a row; older releases lack it.
WRITER_COLUMN = "instance_name"

_LITERAL = re.compile(r"'[^']*'")
_COLUMN = re.compile(r"\b([a-z]+)\.([a-z_]+)\b")


@dataclass(frozen=True, slots=True)
class TableFeed:
    """The rows of one kind that come from one table.

    :ivar table: has the alias ``t`` in expressions
    :ivar cells: by field of the row class, a SQL expression; every column in it is
        written ``alias.column``
    :ivar stream_id: the column with the ID
    :ivar kind: kind of the rows, as in :attr:`.Stream.kinds`
    :ivar joins: by alias, a table and its join condition
    :ivar also: by alias, the tables of sub-queries
    :ivar distinct: whether several rows of the table can be one row on the wire
    """

    table: str
    cells: Mapping[str, str]
    stream_id: str = "stream_id"
    kind: str = UNTAGGED
    joins: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)
    distinct: bool = False

    def columns(self) -> Iterator[tuple[str, str]]:
        """Every (table, column) that is read."""
        joined = {alias: table for alias, (table, _) in self.joins.items()}
        tables = {"t": self.table, **joined, **self.also}
        yield self.table, self.stream_id
        for sql in (*self.cells.values(), *(on for _, on in self.joins.values())):
            for alias, column in _COLUMN.findall(_LITERAL.sub("", sql)):
                yield tables[alias], column


@dataclass(frozen=True, slots=True)
class ForeignStream:
    """The tables of one stream.

    :ivar feeds: in the order of their rows in a fact
    :ivar sequence: the sequence of the IDs; None where a process counts by itself
    :ivar recorded: the stream's name in ``stream_positions``
    """

    feeds: tuple[TableFeed, ...]
    sequence: str | None = None
    recorded: str | None = None
