"""``python -m benchmarks lake_redactions``: finding the redactions of a lake, and looking events up among them.

All rows of the table are redactions, each of another event. A process of its own finds them, as ``synrepl lake land`` does
when it begins: of a million rows, and of ten. Its anonymous memory is compared, which is what it holds: pages of mapped
files can be dropped. A second process then finds what the first has recorded, and looks up events, as a task does:
in files, and in a set of the same digests in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.child import Child
from benchmarks.harness import Row, Scale, at_most
from benchmarks.lake_table import scratch
from synrepl.pipeline.lake.data_files import FileWriter
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.positions.vector import PositionVector
from synrepl.streams.columns import columns
from synrepl.streams.synapse.events import EVENTS

_FEW, _MANY = 1_000_000, 10_000_000

_FILE_ROWS, _BATCH_ROWS = 1_000_000, 100_000


def run(scale: Scale) -> Iterator[Row]:
    """Compare memory, and the second process with the first."""
    few, many = scale.of(_FEW), scale.of(_MANY)
    with scratch() as folder:
        small, _ = _measured(_fill(folder / "few", few), few)
        first, second = _measured(_fill(folder / "many", many), many)
    yield Row(
        "memory of the process that finds them",
        first["mib"] / small["mib"],
        f"× of {few:,}",
        at_most(1.25),
        detail=f"{first['mib']:.0f} against {small['mib']:.0f} MiB; {many:,} redactions",
    )
    yield Row(
        "CPU time of the next process",
        second["cpu_s"] / first["cpu_s"],
        "× of the first",
        at_most(0.1),
        detail=f"{second['cpu_s']:.2f} against {first['cpu_s']:.1f} s; {many:,} redactions",
    )
    yield Row(
        "looking events up",
        second["lookup_us"] / second["lookup_held_us"],
        "× of a set in memory",
        detail=f"{second['lookup_us']:.2f} against {second['lookup_held_us']:.2f} µs an event; "
        f"{second['files']} files",
    )


def _measured(lake: Lake, count: int) -> tuple[dict[str, float], dict[str, float]]:
    found = []
    for _ in range(2):
        with Child("lake_redactions_process", lake.path, count) as child:
            found.append(child.receive())
    return found[0], found[1]


def _fill(folder: Path, count: int) -> Lake:
    """A lake whose ``events`` are all redactions."""
    lake = Lake.open_or_create(folder, "server", False)
    table = lake.ensure_table(StreamSchema(EVENTS.name, False, columns(EVENTS)))
    files = []
    for begin in range(0, count, _FILE_ROWS):
        end = min(begin + _FILE_ROWS, count)
        writer = FileWriter(table.path, arrow_schema(table.stream_schema.columns))
        for first in range(begin, end, _BATCH_ROWS):
            writer.write(_redactions(table.stream_schema, first, min(first + _BATCH_ROWS, end)))
        if (file := writer.close()) is not None:
            files.append(file)
    table.append(files, PositionVector(), PositionVector({}, count))
    return lake


def _redactions(stream_schema: StreamSchema, begin: int, end: int) -> pa.RecordBatch:
    schema = arrow_schema(stream_schema.columns)
    numbers, rows = pa.array(range(begin + 1, end + 1), pa.int64()), end - begin
    digits = pc.utf8_lpad(pc.cast(numbers, pa.string()), 42, "0")
    cells = {
        "stream_id": numbers,
        "row_no": pa.repeat(pa.scalar(0, schema.field("row_no").type), rows),
        "writer": pa.repeat("w", rows),
        "kind": pa.repeat("ev", rows),
        "room_id": pa.repeat("!room:example.org", rows),
        "event_id": pc.binary_join_element_wise("$r", digits, ""),
        "redacts": pc.binary_join_element_wise("$e", digits, ""),
    }
    arrays = [cells.get(field.name, pa.nulls(rows, field.type)) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
