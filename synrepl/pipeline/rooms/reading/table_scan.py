"""Statements that read tables of rooms, and the parts in which they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

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


class RoomScans(NamedTuple):
    """How to read all tables of one database.

    :ivar scans: by the name of the table
    :ivar parts: by axis, the condition of each part
    :ivar missing: rooms that were to be read and are not there
    """

    scans: Mapping[str, TableScan]
    parts: Mapping[PartAxis, Sequence[str]]
    missing: Sequence[str]

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
