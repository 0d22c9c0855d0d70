"""The rows of the benchmark: every shape on every room, writers at the same time, and digests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.database import postgres_server
from benchmarks.harness import Row, Scale, at_most, shown
from benchmarks.room_shapes import digests
from benchmarks.room_shapes.cold import random_read
from benchmarks.room_shapes.delta_rows import DeltaRows
from benchmarks.room_shapes.hash_trie import HashTrie
from benchmarks.room_shapes.histories import WORKLOADS, history_of, linear
from benchmarks.room_shapes.intervals import Intervals
from benchmarks.room_shapes.measure import Figures, measure_room
from benchmarks.room_shapes.packed_groups import PackedGroups
from benchmarks.room_shapes.packed_with_line import PackedWithLine
from benchmarks.room_shapes.packing import (
    ArrayPacking,
    FixedBytePacking,
    PairPacking,
    VariableBytePacking,
)
from benchmarks.room_shapes.shape import Shape
from benchmarks.room_shapes.version_line import VersionLine
from benchmarks.room_shapes.writers import rates
from synrepl.rooms import SkipLevels

Maker = Callable[[int], Shape]

#: What is measured on all rooms.
SHAPES: Sequence[Maker] = (
    DeltaRows,
    lambda room: PackedGroups(room, ArrayPacking(), SkipLevels(16, 3)),
    lambda room: PackedGroups(room, ArrayPacking()),
    VersionLine,
    Intervals,
    HashTrie,
    PackedWithLine,
)

#: What is measured on the linear room alone: text, and ways to pack entries.
_VARIANTS: Sequence[Maker] = (
    lambda room: DeltaRows(room, text=True),
    lambda room: PackedGroups(room, PairPacking()),
    lambda room: PackedGroups(room, FixedBytePacking()),
    lambda room: PackedGroups(room, VariableBytePacking()),
    lambda room: PackedWithLine(room, PairPacking()),
)

#: What is measured in tables that four other rooms fill at the same time.
_AMONG_OTHERS: Sequence[Maker] = (
    lambda room: PackedGroups(room, ArrayPacking()),
    VersionLine,
    PackedWithLine,
)

#: Bytes a state event that all rows and indexes with states may have, in the linear room.
_BOUND = 300


def run(scale: Scale) -> Iterator[Row]:
    """Measure all; every answer of every shape is compared with the room's states."""
    yield from digests.run(scale)
    with postgres_server() as server:
        for name, steps in WORKLOADS.items():
            history = history_of(name, steps(scale.factor))
            makers = [*SHAPES, *(_VARIANTS if name == "linear" else ())]
            yield from map(_row, measure_room(server, makers, history))
        yield Row("cold: a random read of 8 KiB", random_read(server) * 1e6, "µs")
        history = history_of("among others", linear(scale.of(10_000), scale.of(50_000)), 0, 8)
        others = [
            history_of(f"other {room}", linear(scale.of(2_000), scale.of(10_000)), room, 8)
            for room in range(1, 5)
        ]
        yield from map(_row, measure_room(server, _AMONG_OTHERS, history, others, 20))
        for make in SHAPES:
            found = rates(server.dsn, make, (1, 2, 4), scale.of(2_000), scale.of(4_000))
            alone = found[1]
            yield Row(
                f"writers: {make(0).name}",
                found[2] / alone,
                "× one writer, with two",
                None,
                None,
                f"{shown(alone)} state events a second; {shown(found[4] / alone)} × with four",
                {f"writers_{count}": rate for count, rate in found.items()},
            )


def _row(figures: Figures) -> Row:
    is_bounded = figures.room == "linear" and figures.shape.startswith("packed and line")
    f = {name: shown(value) for name, value in figures.numbers().items()}
    detail = (
        f"insert {f['insert_us']} µs; state {f['state']} ms, cold {f['state_cold']};"
        f" 200 entries of a page {f['page']} ms, cold {f['page_cold']}, of 100 groups anywhere {f['spread']};"
        f" difference {f['difference']} ms; fork {f['fork_us']} µs and {f['fork_bytes']} B;"
        f" purge {f['purge']} ms, locks {f['purge_locked']}, longest {f['purge_longest']},"
        f" rows {figures.rows:,} to {figures.rows_after:,}"
    )
    return Row(
        f"{figures.room}: {figures.shape}",
        figures.bytes_a_group,
        "B a state event",
        at_most(_BOUND) if is_bounded else None,
        None,
        detail,
        figures.numbers(),
    )
