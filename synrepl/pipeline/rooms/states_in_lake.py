"""The states after whole events of a lake, put together from its rows alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from synrepl.pipeline.source.database.landed_states import BASE, CHANGED_CELLS, STATE_SIZE
from synrepl.rooms import CompactStateMap, Delta, Slots, StateKey

#: Number of entries, and of rows, in a batch of results.
_ENTRIES, _ROWS = 100_000, 4_096

_ENTRY = pa.struct([pa.field(name, pa.string()) for name in ("type", "state_key", "event_id")])

#: The columns of the result.
#:
#: - ``state``: the entries after the event; null if they are not known
#: - ``has_erased``: entries with an erased state key are not among them
#: - ``problem``: why the state is not known
LANDED_STATES = pa.schema(
    [
        pa.field("room_id", pa.string()),
        pa.field("stream_id", pa.int64()),
        pa.field("event_id", pa.string()),
        pa.field("state", pa.list_(_ENTRY)),
        pa.field("has_erased", pa.bool_()),
        pa.field("problem", pa.string()),
    ]
)

_USED = ("room_id", "stream_id", "event_id", "partial_state", BASE, STATE_SIZE, *CHANGED_CELLS)


def states_in_lake(rows: DataFrame, wanted: SparkColumn | str = "true") -> DataFrame:
    """The states after events of the streams ``room_events`` and ``room_backfill`` of a lake.

    A task goes through the rows of a room in their order, and keeps its states, which share what they have in common:
    some 150 bytes an event, and a kilobyte for each that changes the state.

    :param rows: all rows of the rooms, of one of the streams or of both
    :param wanted: which rows to give the state of, as a condition on their columns
    :returns: a row for each of them that has a state, see :data:`LANDED_STATES`
    """
    is_wanted = f.expr(wanted) if isinstance(wanted, str) else wanted
    used = rows.where("stored").select(
        *_USED, f.coalesce(is_wanted, f.lit(False)).alias("is_wanted")
    )
    by_room = used.repartition("room_id").sortWithinPartitions("room_id", f.abs("stream_id"))
    return by_room.mapInArrow(room_states, from_arrow_schema(LANDED_STATES))


class _Landed(NamedTuple):
    """What is known of the state after an event.

    :ivar state: None if it is not known
    """

    state: CompactStateMap | None
    has_erased: bool
    is_partial: bool
    problem: str | None = None


def room_states(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The states of wanted events.

    :param batches: rows by room, each room's in the order of positions
    """
    found: dict[int, _Landed] = {}
    empty = CompactStateMap(None, Slots())
    room_id: str | None = None
    results = _Results()
    for batch in batches:
        for row in batch.to_pylist():
            if row["room_id"] != room_id:
                room_id = row["room_id"]
                found.clear()
                empty = CompactStateMap(None, Slots())
            landed = found[row["stream_id"]] = _landed(row, found, empty)
            if row["is_wanted"]:
                results.add(row, landed)
                if results.is_full:
                    yield results.take()
    yield results.take()


def _landed(
    row: Mapping[str, Any], found: Mapping[int, _Landed], empty: CompactStateMap
) -> _Landed:
    """The state after an event, from those after the events before it."""
    number, is_partial = row[BASE], bool(row["partial_state"])

    def unknown(why: str) -> _Landed:
        return _Landed(None, False, is_partial, why)

    base = _Landed(empty, False, False) if number is None else found.get(number)
    if base is None:
        return unknown(f"it builds on the state after position {number}, which is not there")
    if base.is_partial and not is_partial:
        return unknown(f"it builds on the state after position {number}, which was not final")
    if base.state is None:
        return unknown(f"it builds on the state after position {number}, which is not known")
    if row[STATE_SIZE] is None or row[CHANGED_CELLS[0]] is None:
        return unknown("the row does not say what it changes")
    types, keys, ids = (row[name] for name in CHANGED_CELLS)
    named = {
        (kind, key): each
        for kind, key, each in zip(types, keys, ids, strict=True)
        if kind is not None and key is not None
    }
    has_erased = base.has_erased or len(named) < len(types)
    state = base.state
    if named:
        entries = {key: each for key, each in named.items() if each is not None}
        state = state.with_delta(Delta(entries, frozenset[StateKey](named.keys() - entries.keys())))
    if not has_erased and len(state) != row[STATE_SIZE]:
        return unknown(f"it has {len(state)} entries, and {row[STATE_SIZE]} in the database")
    return _Landed(state, has_erased, is_partial)


class _Results:
    """Gathers rows of :data:`LANDED_STATES`."""

    def __init__(self) -> None:
        self._heads: list[tuple[Any, ...]] = []
        self._starts = [0]
        self._entries: tuple[list[str], list[str], list[str]] = ([], [], [])

    @property
    def is_full(self) -> bool:
        """Whether they should be taken."""
        return len(self._entries[0]) >= _ENTRIES or len(self._heads) >= _ROWS

    def add(self, row: Mapping[str, Any], landed: _Landed) -> None:
        """Add a row."""
        head = (row["room_id"], row["stream_id"], row["event_id"])
        self._heads.append((*head, landed.has_erased, landed.problem))
        for (kind, key), event_id in ({} if landed.state is None else landed.state).items():
            for column, cell in zip(self._entries, (kind, key, event_id), strict=True):
                column.append(cell)
        self._starts.append(len(self._entries[0]))

    def take(self) -> pa.RecordBatch:
        """The rows gathered so far, which are dropped here."""
        rooms, numbers, ids, erased, problems = (
            zip(*self._heads, strict=True) if self._heads else ((), (), (), (), ())
        )
        entries = pa.StructArray.from_arrays(
            [pa.array(column, pa.string()) for column in self._entries], fields=list(_ENTRY)
        )
        is_unknown = pa.array([problem is not None for problem in problems], pa.bool_())
        states = pa.ListArray.from_arrays(
            pa.array(self._starts, pa.int32()), entries, mask=is_unknown
        )
        columns = [rooms, numbers, ids, states, erased, problems]
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, LANDED_STATES, strict=True)
        ]
        self.__init__()  # type: ignore[misc]
        return pa.RecordBatch.from_arrays(arrays, schema=LANDED_STATES)
