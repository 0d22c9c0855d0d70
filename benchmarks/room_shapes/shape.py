"""The interface of a shape: a way to store the states of rooms in tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from io import StringIO
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from benchmarks.room_shapes.histories import History, HistoryGroup

#: A psycopg2 cursor or connection; the driver has no types for them.
Cursor = Any
Connection = Any

#: Slot to event number.
State = dict[int, int]


class Purged(NamedTuple):
    """What a purge took, in seconds.

    :ivar seconds: in all
    :ivar longest: the longest time between the first change of a transaction and its end
    :ivar locked: the sum of these times
    """

    seconds: float
    longest: float
    locked: float


class Shape(Protocol):
    """The states of one room, in tables that rooms share.

    An instance is also the room's one writer: it may remember what it has written.

    :ivar name: what is shown
    """

    name: str

    @property
    def tables(self) -> Sequence[str]:
        """The tables that it has."""

    def create(self, cursor: Cursor) -> None:
        """Create the tables."""

    def insert(self, cursor: Cursor, groups: Sequence[HistoryGroup], history: History) -> None:
        """Store groups, in the caller's transaction.

        :param history: states of groups that the writer has in memory
        """

    def state_at(self, cursor: Cursor, group: int) -> State:
        """The whole state of a group."""

    def entries_at(
        self, cursor: Cursor, groups: Sequence[int], slots: Sequence[int]
    ) -> dict[tuple[int, int], int]:
        """The events of some slots at each of some groups, by (group, slot)."""

    def difference(self, cursor: Cursor, old: int, new: int) -> dict[int, int | None]:
        """What turns one state into another."""

    def purge(self, connection: Connection, low: int, high: int) -> Purged:
        """Delete the room's groups with numbers from ``low`` to ``high``; all others keep their states."""


class TimedTransactions:
    """Runs the transactions of a purge, and measures how long each holds locks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._began = perf_counter()
        self._times: list[float] = []

    def run(self, work: Callable[[Cursor], object]) -> None:
        """Run statements that change rows, in a transaction of their own."""
        began = perf_counter()
        with self._connection, self._connection.cursor() as cursor:
            work(cursor)
        self._times.append(perf_counter() - began)

    def done(self) -> Purged:
        """The times of all that ran."""
        return Purged(perf_counter() - self._began, max(self._times), sum(self._times))


def copy(cursor: Cursor, table: str, columns: str, rows: Iterable[Sequence[object]]) -> None:
    """COPY rows of numbers, texts without special characters, and lists of numbers into a table."""
    text = StringIO()
    for row in rows:
        text.write("\t".join(map(_copied, row)))
        text.write("\n")
    text.seek(0)
    cursor.copy_expert(f"COPY {table} ({columns}) FROM STDIN", text)


def _copied(value: object) -> str:
    if value is None:
        return "\\N"
    if isinstance(value, list):
        return "{" + ",".join(map(str, value)) + "}"
    if isinstance(value, bytes):
        return "\\\\x" + value.hex()
    return str(value)


def compared(old: Mapping[int, int], new: Mapping[int, int]) -> dict[int, int | None]:
    """What turns one whole state into another."""
    found: dict[int, int | None] = dict(new.items() - old.items())
    found.update(dict.fromkeys(old.keys() - new.keys()))
    return found


def slices(numbers: Collection[int], size: int) -> list[list[int]]:
    """Sorted numbers in lists of at most ``size``."""
    ordered = sorted(numbers)
    return [ordered[at : at + size] for at in range(0, len(ordered), size)]
