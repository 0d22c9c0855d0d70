"""The shapes of room states: every one returns the states that were stored, also after a purge."""

from __future__ import annotations

from contextlib import closing
from typing import ClassVar

import psycopg2
from twisted.trial.unittest import SynchronousTestCase, TestCase

from benchmarks.room_shapes.histories import (
    History,
    Steps,
    backfilled,
    forked,
    history_of,
    linear,
    netsplit,
)
from benchmarks.room_shapes.line import ALWAYS, RoomLine
from benchmarks.room_shapes.measure import batches, fill
from benchmarks.room_shapes.packing import (
    ArrayPacking,
    FixedBytePacking,
    PairPacking,
    VariableBytePacking,
)
from benchmarks.room_shapes.run import SHAPES
from benchmarks.room_shapes.shape import Shape
from synrepl.testing.postgres import fresh_database

_ROOMS: dict[str, Steps] = {
    "linear": [*linear(30, 120)],
    "forked": [*forked(30, 100, 4)],
    "netsplit": [*netsplit(30, 5, 1)],
    "backfilled": backfilled(30, 40, 5),
}


class EveryShapeOfRoomStates(TestCase):
    """All answers, of every group, compared with the states of the history."""

    async def test_returns_the_state_of_every_group(self) -> None:
        for shape, history, dsn in await self._filled():
            with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
                for group in history.groups[::7]:
                    found = shape.state_at(cursor, group.number)
                    self.assertEqual(found, history.state(group.number), shape.name)

    async def test_finds_entries_of_several_groups(self) -> None:
        for shape, history, dsn in await self._filled():
            groups, slots = [group.number for group in history.groups[::3]], [4, 9, 12]
            with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
                found = shape.entries_at(cursor, groups, slots)
            self.assertEqual(found, _entries(history, groups, slots), shape.name)

    async def test_finds_the_difference_of_two_states(self) -> None:
        for shape, history, dsn in await self._filled():
            numbers = [group.number for group in history.groups]
            with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
                for old, new in zip(numbers[::20], numbers[10::20], strict=False):
                    found = shape.difference(cursor, old, new)
                    self.assertEqual(found, history.change(old, new), shape.name)

    async def test_keeps_the_states_that_a_purge_spares(self) -> None:
        for shape, history, dsn in await self._filled():
            numbers = [group.number for group in history.groups]
            is_backfilled = history.name == "backfilled"
            starts = [each.number for each in history.groups if each.is_earlier]
            low, high = (
                (starts[2], numbers[-1])
                if is_backfilled
                else (numbers[0], numbers[len(numbers) // 2])
            )
            kept = [number for number in numbers if not low <= number <= high]
            with closing(psycopg2.connect(dsn)) as connection:
                shape.purge(connection, low, high)
                with connection.cursor() as cursor:
                    for number in kept[::5]:
                        found = shape.state_at(cursor, number)
                        self.assertEqual(found, history.state(number), shape.name)
                    entries = shape.entries_at(cursor, kept, [4, 9])
            self.assertEqual(entries, _entries(history, kept, [4, 9]), shape.name)

    async def _filled(self) -> list[tuple[Shape, History, str]]:
        found = []
        for name, steps in _ROOMS.items():
            dsn = await fresh_database(self)
            history = history_of(name, steps)
            for make in SHAPES:
                shape = make(1)
                if name != "linear" and "16^3" in shape.name:
                    continue  # differs from 12^4 in its parameters only
                with closing(psycopg2.connect(dsn)) as connection:
                    with connection, connection.cursor() as cursor:
                        shape.create(cursor)
                    fill(connection, [(shape, history)], 50)
                found.append((shape, history, dsn))
        return found


class PackingOfEntries(SynchronousTestCase):
    """Every packing unpacks to what was packed."""

    change: ClassVar[dict[int, int | None]] = {0: 5_000_000_000, 3: None, 200: 1, 70_000: 2**40 - 1}

    def test_unpacks_to_the_same_entries(self) -> None:
        for packing in ArrayPacking(), PairPacking(), FixedBytePacking(), VariableBytePacking():
            self.assertEqual(packing.unpacked(packing.packed(self.change)), self.change)
            self.assertEqual(packing.unpacked(packing.packed({})), {})


class LineOfRoom(SynchronousTestCase):
    """What is on the line, and where."""

    def test_has_every_group_of_a_room_without_forks(self) -> None:
        history = history_of("linear", linear(10, 50))
        placed = RoomLine().place(history.groups, history)
        self.assertEqual(list(placed.positions.values()), list(range(len(history.groups))))

    def test_puts_a_backfilled_stretch_before_the_oldest_position(self) -> None:
        history = history_of("backfilled", backfilled(10, 5, 2))
        line = RoomLine()
        live, first, second = batches(history.groups)
        line.place(live, history)
        one = line.place(first, history)
        two = line.place(second, history)
        self.assertEqual(max(one.positions.values()), -1)
        self.assertEqual(max(two.positions.values()), min(one.positions.values()) - 1)
        touched = {slot for group in second for slot in group.change}
        self.assertEqual(
            {version.slot for version in two.versions if version.pos == ALWAYS},
            touched - {slot for slot in touched if slot not in history.state(second[0].number)},
        )

    def test_goes_on_after_branches_have_met(self) -> None:
        history = history_of("forked", forked(20, 200, 4))
        placed = RoomLine().place(history.groups, history)
        self.assertIn(history.groups[-1].number, placed.positions)


def _entries(history: History, groups: list[int], slots: list[int]) -> dict[tuple[int, int], int]:
    return {
        (group, slot): event
        for group in groups
        for slot, event in history.state(group).items()
        if slot in slots
    }
