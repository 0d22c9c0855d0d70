"""Statements that read tables of rooms, and the parts in which they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from synrepl.pipeline.rooms.parts.source import RoomPart
from synrepl.pipeline.rooms.tables import TableColumns

#: Events whose rows one task reads. Memory does not depend on it, because rows are streamed.
PART_EVENTS = 50_000

#: A small database has this number of parts, so that cores have as much to do as one another, but none is smaller
#: than this number of events.
_FEWEST_PARTS, _SMALLEST_PART = 8, 5_000


class PartAxis(StrEnum):
    """By what a table is cut into parts."""

    EVENTS = "events"
    GROUPS = "state groups"
    ROOMS = "rooms"


class TableScan(NamedTuple):
    """How to read one table.

    :ivar sql: the statement, with ``{part}`` for the condition of a part
    """

    table: TableColumns
    axis: PartAxis
    sql: str


class PartStatements(NamedTuple):
    """How tasks read parts of rooms from one database.

    :ivar rooms: selects the rooms that are read, as :class:`.JudgedRoom` has them
    :ivar statements: by the name of the table, with ``{part}`` for the condition of parts
    :ivar room: the column of the room's key
    :ivar place: the topological and the stream ordering of an event, as a row
    :ivar is_outlier: the condition for outliers
    """

    rooms: str
    statements: Mapping[str, str]
    room: str
    place: str
    is_outlier: str

    def condition(self, parts: Sequence[RoomPart]) -> str:
        """The condition for parts: all are whole and of one kind, or there is one."""
        keys = ", ".join(part.room.key for part in parts)
        first, *_ = parts
        return " AND ".join(
            [
                f"{self.room} IN ({keys})",
                self.is_outlier if first.is_outliers else f"NOT ({self.is_outlier})",
                *(() if first.first is None else [f"{self.place} >= {first.first}"]),
                *(() if first.until is None else [f"{self.place} < {first.until}"]),
            ]
        )


class RoomScans(NamedTuple):
    """How to read all tables of one database.

    :ivar scans: by the name of the table
    :ivar parts: by axis, the condition of each part
    :ivar missing: rooms that were to be read and are not there
    :ivar judged: how parts of rooms are read
    """

    scans: Mapping[str, TableScan]
    parts: Mapping[PartAxis, Sequence[str]]
    missing: Sequence[str]
    judged: PartStatements

    def statements(self, table: TableColumns) -> list[str]:
        """The statements that read a table, one for each part."""
        scan = self.scans[table.name]
        return [scan.sql.replace("{part}", part) for part in self.parts[scan.axis]]


def part_size(events: int) -> int:
    """How many of some events one task reads."""
    return max(_SMALLEST_PART, min(PART_EVENTS, -(-events // _FEWEST_PARTS)))


def number_ranges(first: int, last: int, step: int) -> Iterator[tuple[int, int]]:
    """Cut a range of numbers, both ends included."""
    for low in range(first, last + 1, step):
        yield low, min(low + step - 1, last)
