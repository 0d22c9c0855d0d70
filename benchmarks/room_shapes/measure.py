"""Measures one shape on one room."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import groupby, zip_longest
from statistics import median
from time import perf_counter

import psycopg2

from benchmarks.room_shapes.cold import restart_cold
from benchmarks.room_shapes.histories import History, HistoryGroup
from benchmarks.room_shapes.shape import Connection, Cursor, Shape
from synrepl.storage.launch.postgres import PostgresServer

#: State events that are persisted in one transaction.
BATCH = 1_000

#: Events of a page, for each of which two entries are looked up: its visibility, and the asker's membership.
PAGE = 100

_FORKS = 400
_WARM = 9
_COLD = 3


@dataclass(slots=True)
class Figures:
    """What was measured of a shape; times in milliseconds unless their name says otherwise."""

    shape: str
    room: str
    groups: int = 0
    rows: int = 0
    bytes_a_group: float = 0.0
    insert_us: float = 0.0
    state: float = 0.0
    state_cold: float = 0.0
    page: float = 0.0
    page_cold: float = 0.0
    spread: float = 0.0
    difference: float = 0.0
    fork_us: float = 0.0
    fork_bytes: float = 0.0
    purge: float = 0.0
    purge_longest: float = 0.0
    purge_locked: float = 0.0
    rows_after: int = 0

    def numbers(self) -> dict[str, float]:
        """All but the names."""
        return {name: value for name, value in asdict(self).items() if not isinstance(value, str)}


class WrongAnswer(AssertionError):
    """A shape returned something else than the room's state."""


class Questions:
    """What is read of a room: an old state, the entries of a page, and the difference of two states."""

    def __init__(self, history: History) -> None:
        count = len(history.groups)
        numbers = [group.number for group in history.groups]
        third = count // 3
        self.old = numbers[third]
        self.later = numbers[min(third + 1_000, count - 1)]
        self.page = numbers[third : third + PAGE]
        self.spread = numbers[:: max(1, count // PAGE)][:PAGE]
        # The visibility, and a member who joined early.
        self.slots = [4, 5 + third // 7 % (len(history.slots.keys) - 5)]

    def check(self, cursor: Cursor, shape: Shape, history: History) -> None:
        """Compare all answers with the history.

        :raises WrongAnswer: one differs
        """
        if shape.state_at(cursor, self.old) != history.state(self.old):
            raise WrongAnswer(f"{shape.name}: state of {self.old}")
        for groups in self.page, self.spread:
            found = shape.entries_at(cursor, groups, self.slots)
            states = {group: history.state(group) for group in groups}
            expected = {
                (group, slot): state[slot]
                for group, state in states.items()
                for slot in self.slots
                if slot in state
            }
            if found != expected:
                raise WrongAnswer(f"{shape.name}: entries of a page")
        if shape.difference(cursor, self.old, self.later) != history.change(self.old, self.later):
            raise WrongAnswer(f"{shape.name}: difference")


def batches(groups: Sequence[HistoryGroup], batch: int = BATCH) -> Iterator[Sequence[HistoryGroup]]:
    """Groups as they are persisted: in batches, and each backfilled stretch in one of its own."""
    stretch = 0
    parts: list[tuple[int, HistoryGroup]] = []
    for group in groups:
        stretch += group.is_earlier
        parts.append((stretch, group))
    for is_stretch, part in groupby(parts, key=lambda each: each[0]):
        found = [group for _, group in part]
        size = len(found) if is_stretch else batch
        yield from (found[at : at + size] for at in range(0, len(found), size))


def fill(connection: Connection, rooms: Sequence[tuple[Shape, History]], size: int) -> float:
    """Store rooms, a batch of each in turn; returns the seconds that it took."""
    gc.collect()
    began = perf_counter()
    turns = zip_longest(*(batches(history.groups, size) for _, history in rooms))
    for turn in turns:
        for (shape, history), batch in zip(rooms, turn, strict=True):
            if batch is not None:
                with connection, connection.cursor() as cursor:
                    shape.insert(cursor, batch, history)
    return perf_counter() - began


def measure_room(
    server: PostgresServer,
    makers: Sequence[Callable[[int], Shape]],
    history: History,
    others: Sequence[History] = (),
    batch: int = BATCH,
) -> list[Figures]:
    """All figures of some shapes for one room; their tables are made, and dropped again.

    :param makers: make a shape for a room's number
    :param others: rooms that are stored at the same time in the same tables
    """
    questions = Questions(history)
    shapes = [make(1) for make in makers]
    count = sum(len(each.groups) for each in (history, *others))
    found = [Figures(shape.name, history.name, count) for shape in shapes]
    with closing(psycopg2.connect(server.dsn)) as connection:
        for make, shape, figures in zip(makers, shapes, found, strict=True):
            with connection, connection.cursor() as cursor:
                shape.create(cursor)
            rooms = [(shape, history)]
            rooms += [(make(nth), other) for nth, other in enumerate(others, 2)]
            seconds = fill(connection, rooms, batch)
            figures.insert_us = seconds * 1e6 / figures.groups
            vacuum(connection, shape)
            size, figures.rows = size_of(connection, shape)
            figures.bytes_a_group = size / figures.groups
            with connection, connection.cursor() as cursor:
                questions.check(cursor, shape, history)
                _warm(cursor, shape, questions, figures)
    _cold(server, shapes, questions, found)
    with closing(psycopg2.connect(server.dsn)) as connection:
        for shape, figures in zip(shapes, found, strict=True):
            _purge(connection, shape, history, figures)
            _fork(connection, shape, history, figures)
            with connection, connection.cursor() as cursor:
                for table in shape.tables:
                    cursor.execute(f"DROP TABLE {table}")
    return found


def _warm(cursor: Cursor, shape: Shape, questions: Questions, figures: Figures) -> None:
    figures.state = _median(lambda: shape.state_at(cursor, questions.old))
    figures.page = _median(lambda: shape.entries_at(cursor, questions.page, questions.slots))
    figures.spread = _median(lambda: shape.entries_at(cursor, questions.spread, questions.slots))
    figures.difference = _median(lambda: shape.difference(cursor, questions.old, questions.later))


def _cold(
    server: PostgresServer, shapes: Sequence[Shape], questions: Questions, found: list[Figures]
) -> None:
    states: dict[str, list[float]] = {shape.name: [] for shape in shapes}
    pages: dict[str, list[float]] = {shape.name: [] for shape in shapes}
    for _ in range(_COLD):
        for times, is_state in (states, True), (pages, False):
            restart_cold(server)
            with closing(psycopg2.connect(server.dsn)) as connection:
                for shape in shapes:
                    with connection, connection.cursor() as cursor:
                        # Catalogs and plans are not what is measured.
                        shape.entries_at(cursor, [], questions.slots)
                        began = perf_counter()
                        if is_state:
                            shape.state_at(cursor, questions.old)
                        else:
                            shape.entries_at(cursor, questions.page, questions.slots)
                        times[shape.name].append((perf_counter() - began) * 1e3)
    for figures in found:
        figures.state_cold = median(states[figures.shape])
        figures.page_cold = median(pages[figures.shape])


def _purge(connection: Connection, shape: Shape, history: History, figures: Figures) -> None:
    """Purge the half of the room that comes first."""
    numbers = [group.number for group in history.groups]
    earlier = [nth for nth, group in enumerate(history.groups) if group.is_earlier]
    if earlier:  # stored last
        low, high = numbers[earlier[len(earlier) // 2]], numbers[-1]
    else:
        low, high = numbers[0], numbers[len(numbers) // 2 - 1]
    before = size_of(connection, shape)[1]
    purged = shape.purge(connection, low, high)
    figures.purge = purged.seconds * 1e3
    figures.purge_longest = purged.longest * 1e3
    figures.purge_locked = purged.locked * 1e3
    figures.rows, figures.rows_after = before, size_of(connection, shape)[1]
    kept = [number for number in numbers if not low <= number <= high]
    with connection, connection.cursor() as cursor:
        for number in kept[:: max(1, len(kept) // 9)]:
            if shape.state_at(cursor, number) != history.state(number):
                raise WrongAnswer(f"{shape.name}: state of {number} after a purge")
        page = kept[:: max(1, len(kept) // 20)]
        expected = {
            (number, slot): event
            for number in page
            for slot, event in history.state(number).items()
            if slot in (4, 9)
        }
        if shape.entries_at(cursor, page, (4, 9)) != expected:
            raise WrongAnswer(f"{shape.name}: entries after a purge")


def _fork(connection: Connection, shape: Shape, history: History, figures: Figures) -> None:
    """Add groups that follow one in the middle of what was kept."""
    is_backfilled = any(group.is_earlier for group in history.groups)
    at = len(history.groups) // (4 if is_backfilled else 1) * 3 // 4
    groups = history.forks(at, _FORKS)
    before = size_of(connection, shape)[0]
    began = perf_counter()
    with connection, connection.cursor() as cursor:
        shape.insert(cursor, groups, history)
    figures.fork_us = (perf_counter() - began) * 1e6 / _FORKS
    figures.fork_bytes = (size_of(connection, shape)[0] - before) / _FORKS
    with connection, connection.cursor() as cursor:
        number = groups[-1].number
        if shape.state_at(cursor, number) != history.state(number):
            raise WrongAnswer(f"{shape.name}: state of a fork")
    for group in groups:
        del history.states[group.number]


def vacuum(connection: Connection, shape: Shape) -> None:
    """What autovacuum does in time."""
    connection.autocommit = True
    with connection.cursor() as cursor:
        for table in shape.tables:
            cursor.execute(f"VACUUM (ANALYZE) {table}")
    connection.autocommit = False


def size_of(connection: Connection, shape: Shape) -> tuple[int, int]:
    """Bytes with indexes, and number of rows."""
    size = rows = 0
    with connection, connection.cursor() as cursor:
        for table in shape.tables:
            cursor.execute(
                f"SELECT pg_table_size('{table}') + pg_indexes_size('{table}'), (SELECT count(*) FROM {table})"
            )
            ((one, many),) = cursor.fetchall()
            size, rows = size + int(one), rows + int(many)
    return size, rows


def _median(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_WARM):
        began = perf_counter()
        work()
        times.append((perf_counter() - began) * 1e3)
    return median(times)
