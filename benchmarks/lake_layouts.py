"""``python -m benchmarks lake_layouts``: where rows lie in the files of a lake, and what it costs to find some.

Two million rows like those of ``room_events``: some 400 bytes, over thirty days, one in a hundred of them late by up to
thirty days, in 20,000 rooms, of which the largest has a tenth of the rows and most have fewer than a hundred. They are
written as Delta tables in several layouts:

- *tokens*: files in the order of tokens, as landing writes them;
- *rooms*: as compaction writes large files, see :mod:`synrepl.pipeline.lake.room_order`;
- *whole files*: each file sorted by room as a whole, for which a task would have to hold it, or to sort it on disk;
- *days*: a partition, so a file, for each day;
- *Bloom*: in the order of tokens, with Bloom filters of room and event IDs.

Each is read by Spark (the lake's own DataFrame), deltalake with PyArrow, and polars: a room of few rows and the largest
one, one event by its ID, one day by ``origin_server_ts``, and all rows. The figure is that of *rooms*, in CPU time of the
process with its JVM, as a part of what *tokens* take.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction
from pyspark.sql import functions as f

from benchmarks.harness import Bound, Row, Scale, at_most, interleaved, shown
from benchmarks.lake_table import scratch
from benchmarks.process_tree import descendants
from synrepl.pipeline.lake import room_order
from synrepl.pipeline.lake.column_ranges import skipping_columns
from synrepl.pipeline.lake.data_files import DataFile, FileWriter
from synrepl.pipeline.lake.dataframe import parquet_dataframe
from synrepl.pipeline.lake.file_statistics import completed
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session

ROWS = 2_000_000
_ROOMS = 20_000
_USERS = 100_000
DAYS = 30
DAY_MS = 86_400_000
FIRST_MS = 20_000 * DAY_MS
_LATE = 0.01
_FILES = 4
REPETITIONS = 2
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")

_LETTERS = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8
)

SPARK_SCHEMA = (
    "stream_id bigint, row_no bigint, writer string, event_id string, room_id string, type string,"
    " sender string, origin_server_ts bigint, json string, origin_server_time timestamp"
)

_TIME = room_order.TIME

#: By question, the bound of what rows by room may cost.
_BOUNDS: Mapping[str, Bound | None] = {
    "small room": at_most(0.7),
    "largest room": at_most(0.7),
    "one event": None,
    "one day": at_most(1.1),
    "all": at_most(1.2),
}


def run(scale: Scale) -> Iterator[Row]:
    """Write all layouts, and read each."""
    rows = event_rows(scale.of(ROWS))
    options = SessionOptions(master="local[2]", driver_memory="1g")
    with scratch() as folder, open_session(options) as spark:
        costs = {name: write(folder / name, rows) for name, write in _LAYOUTS.items()}
        yield _figure(
            "bytes of files", {name: each.bytes / len(rows) for name, each in costs.items()},
            "bytes a row", at_most(1.1),
        )  # fmt: skip
        yield _figure(
            "writing files", {name: each.cpu * 1e9 / len(rows) for name, each in costs.items()},
            "ns of CPU a row", None,
        )  # fmt: skip
        for reader, read in readers(spark).items():
            for question, wanted in _questions(rows).items():
                found = _asked(folder, partial(read, wanted))
                times = {name: median(each) * 1000 for name, each in found.items()}
                yield _figure(f"{reader}: {question}", times, "ms of CPU", _BOUNDS[question])


def _figure(name: str, found: Mapping[str, float], unit: str, bound: Bound | None) -> Row:
    others = ", ".join(f"{shown(each)} ({of})" for of, each in found.items() if of != "rooms")
    detail = f"{shown(found['rooms'])} against {others} {unit}"
    return Row(name, found["rooms"] / found["tokens"], "× tokens", bound, detail=detail)


@dataclass(frozen=True)
class WantedRows:
    """Which rows are asked for.

    :ivar column: "": all rows
    :ivar low: the least value that is wanted
    :ivar high: the greatest
    """

    column: str = ""
    low: Any = None
    high: Any = None


def _questions(rows: pa.Table) -> Mapping[str, WantedRows]:
    sizes = rows.column("room_id").value_counts().to_pylist()
    ordered = sorted(sizes, key=lambda each: (each["counts"], each["values"]))
    small, large = ordered[len(ordered) // 2]["values"], ordered[-1]["values"]
    event = rows.column("event_id")[len(rows) // 3].as_py()
    noon = FIRST_MS + DAYS // 2 * DAY_MS
    return {
        "small room": WantedRows("room_id", small, small),
        "largest room": WantedRows("room_id", large, large),
        "one event": WantedRows("event_id", event, event),
        "one day": WantedRows(_TIME, noon, noon + DAY_MS - 1),
        "all": WantedRows(),
    }


def _asked(folder: Path, read: Callable[[Path], int]) -> dict[str, list[float]]:
    """CPU seconds of a question to each layout."""
    answers: set[int] = set()

    def cpu(layout: str) -> float:
        before = cpu_with_jvm()
        answers.add(read(folder / layout))
        return cpu_with_jvm() - before

    found = interleaved({each: partial(cpu, each) for each in _LAYOUTS}, REPETITIONS)
    if len(answers) != 1 or 0 in answers:
        raise AssertionError(f"the layouts do not have the same rows: {answers}")
    return found


def cpu_with_jvm() -> float:
    """CPU seconds of this process and its JVM, with those of threads that have ended."""
    found = time.process_time()
    for pid in descendants(os.getpid(), "java"):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found += sum(map(int, words[11:13])) * _TICK_S
    return found


def readers(spark: Any) -> Mapping[str, Callable[[WantedRows, Path], int]]:
    """Each returns the number of characters of JSON in the rows that are wanted."""
    return {"Spark": partial(_spark, spark), "deltalake": _deltalake, "polars": _polars}


def _condition(column: Any, wanted: WantedRows) -> Any:
    """As an expression of any reader. Bloom filters answer only whether a value is there."""
    if wanted.low == wanted.high:
        return column == wanted.low
    return (column >= wanted.low) & (column <= wanted.high)


def _spark(spark: Any, wanted: WantedRows, path: Path) -> int:
    """Files by the log, as the lake's own code chooses them; then Spark."""
    files = pa.table(DeltaTable(path).get_add_actions(flatten=True)).to_pylist()
    if f"min.{wanted.column}" in (files[0] if files else ()):
        files = [
            file
            for file in files
            if file[f"min.{wanted.column}"] <= wanted.high
            and file[f"max.{wanted.column}"] >= wanted.low
        ]
    frame = parquet_dataframe(spark, SPARK_SCHEMA, [str(path / file["path"]) for file in files])
    if wanted.column:
        frame = frame.where(_condition(f.col(wanted.column), wanted))
    return int(frame.agg(f.sum(f.length("json"))).collect()[0][0])


def _deltalake(wanted: WantedRows, path: Path) -> int:
    column = pc.field(wanted.column or "stream_id")
    chosen = _condition(column, wanted) if wanted.column else None
    batches = DeltaTable(path).to_pyarrow_dataset().scanner(columns=["json"], filter=chosen)
    sums = (pc.sum(pc.utf8_length(batch.column(0))).as_py() for batch in batches.to_batches())
    return sum(each or 0 for each in sums)


def _polars(wanted: WantedRows, path: Path) -> int:
    frame = polars.scan_delta(str(path))
    if wanted.column:
        frame = frame.filter(_condition(polars.col(wanted.column), wanted))
    return int(frame.select(polars.col("json").str.len_chars().sum()).collect().item())


@dataclass(frozen=True)
class LayoutCost:
    """What a layout takes.

    :ivar bytes: the size of its files
    :ivar cpu: CPU seconds for writing them
    """

    bytes: int
    cpu: float


#: Writes some rows to a file in a folder.
_WriteFile = Callable[[Path, pa.Table], DataFile]


def by_file_writer(
    by_room: bool, folder: Path, rows: pa.Table, schema: pa.Schema | None = None
) -> DataFile:
    """Write a file as the lake does.

    :param schema: of the file; None: that of the rows
    """
    writer = FileWriter(folder, schema or rows.schema, by_room=by_room)
    for batch in rows.to_batches(8192):
        writer.write(batch)
    file = writer.close()
    assert file is not None
    return file


def _sorted_as_a_whole(folder: Path, rows: pa.Table) -> DataFile:
    order = pc.sort_indices(rows, [("room_id", "ascending"), ("stream_id", "ascending")])
    found = rows.take(order)
    return _by_parquet_writer(folder, found, 32_768, ["room_id", "stream_id", _TIME], {})


def _with_bloom_filters(folder: Path, rows: pa.Table) -> DataFile:
    filters = {
        "room_id": {"ndv": _ROOMS, "fpp": 0.01},
        "event_id": {"ndv": 131_072, "fpp": 0.01},
    }
    return _by_parquet_writer(folder, rows, 131_072, ["stream_id", _TIME], filters)


def _by_parquet_writer(
    folder: Path, rows: pa.Table, group_rows: int, statistics: list[str], filters: dict[str, Any]
) -> DataFile:
    name = f"part-{len(list(folder.iterdir()))}.parquet"
    pq.write_table(
        rows,
        folder / name,
        row_group_size=group_rows,
        compression="zstd",
        use_dictionary=[each for each in rows.schema.names if each != "stream_id"],
        column_encoding={"stream_id": "DELTA_BINARY_PACKED"},
        write_statistics=statistics,
        bloom_filter_options=filters or None,
    )
    ends = pc.min_max(rows.column("stream_id")).as_py()
    size = (folder / name).stat().st_size
    file = DataFile(name, size, len(rows), ends["min"], ends["max"])
    (found,) = completed(folder, [file], [_TIME])
    return found


def written(
    write: _WriteFile, path: Path, rows: pa.Table, schema: pa.Schema | None = None
) -> LayoutCost:
    """Write a table of some files.

    :param schema: of the table; None: that of the rows
    """
    size = -(-len(rows) // _FILES)
    return _table(
        path,
        schema or rows.schema,
        ((rows.slice(n * size, size), {}) for n in range(_FILES)),
        write,
    )


def _days(path: Path, rows: pa.Table) -> LayoutCost:
    days = pc.divide(rows.column(_TIME), DAY_MS)
    parts = (
        (rows.filter(pc.equal(days, day)), {"day": str(day)})
        for day in sorted(pc.unique(days).to_pylist())
    )
    schema = rows.schema.append(pa.field("day", pa.string()))
    return _table(path, schema, parts, partial(by_file_writer, False), ["day"])


def _table(
    path: Path,
    schema: pa.Schema,
    parts: Iterator[tuple[pa.Table, dict[str, str]]],
    write: _WriteFile,
    partitions: list[str] | None = None,
) -> LayoutCost:
    table = DeltaTable.create(
        str(path), Schema.from_arrow(schema), partition_by=partitions,
        configuration={"delta.dataSkippingStatsColumns": ",".join(_skipping(schema))},
    )  # fmt: skip
    actions, cpu = [], 0.0
    for rows, values in parts:
        begun = time.process_time()
        file = write(path, rows)
        cpu += time.process_time() - begun
        now = int(time.time() * 1000)
        found: dict[str, str | None] = {**values}
        actions.append(AddAction(file.name, file.size, found, now, True, file.stats))
    table.create_write_transaction(actions, "append", table.schema(), partition_by=partitions)
    return LayoutCost(sum(action.size for action in actions), cpu)


def _skipping(schema: pa.Schema) -> list[str]:
    """The columns of which the log has the extremes."""
    return ["stream_id", *skipping_columns(schema)]


_LAYOUTS: Mapping[str, Callable[[Path, pa.Table], LayoutCost]] = {
    "tokens": partial(written, partial(by_file_writer, False)),
    "rooms": partial(written, partial(by_file_writer, True)),
    "whole-files": partial(written, _sorted_as_a_whole),
    "days": _days,
    "Bloom": partial(written, _with_bloom_filters),
}


def event_rows(rows: int) -> pa.Table:
    chance = np.random.default_rng(17)
    weights = 1 / np.arange(1, _ROOMS + 1) ** 1.05
    room = chance.choice(_ROOMS, rows, p=weights / weights.sum())
    number = np.arange(rows)
    event = _texts(chance, b"$", rows, 43, b"")
    sender = _texts(chance, b"@", _USERS, 8, b":example.org").take(
        pa.array((room * 40 + chance.integers(0, 40, rows)) % _USERS)
    )
    names = ["m.room.message", "m.reaction", "m.room.member", "m.room.encrypted"]
    kind = pa.array(names).take(pa.array(np.minimum(chance.geometric(0.6, rows) - 1, 3)))
    cited = event.take(pa.array(np.maximum(number - 1, 0)))
    json = pc.binary_join_element_wise(
        '{"content":{"body":"', _texts(chance, b"", rows, 90, b""), '","msgtype":"m.text"},"depth":',
        pa.array(number).cast(pa.string()), ',"sender":"', sender, '","type":"', kind,
        '","prev_events":["', cited, '"]}', "",
    )  # fmt: skip
    return pa.table(
        {
            "stream_id": number + 1,
            "row_no": np.zeros(rows, np.int64),
            "writer": pa.array(["persister1", "persister2"]).take(pa.array(number % 3 // 2)),
            "event_id": event,
            "room_id": _texts(chance, b"!", _ROOMS, 18, b":example.org").take(pa.array(room)),
            "type": kind,
            "sender": sender,
            _TIME: _times(chance, number),
            "json": json,
        }
    )


def _times(chance: np.random.Generator, number: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """In the order of the rows, but for some milliseconds, and for those that are late."""
    found = FIRST_MS + number * DAYS * DAY_MS // len(number)
    found -= chance.integers(0, 3000, len(number))
    late = chance.random(len(number)) < _LATE
    found[late] -= chance.integers(0, DAYS * DAY_MS, int(late.sum()))
    return np.maximum(found, FIRST_MS)


def _texts(
    chance: np.random.Generator, before: bytes, rows: int, letters: int, after: bytes
) -> pa.Array:
    """Random texts of one length."""
    width = len(before) + letters + len(after)
    data = np.empty((rows, width), np.uint8)
    data[:, : len(before)] = np.frombuffer(before, np.uint8)
    data[:, len(before) : len(before) + letters] = _LETTERS[chance.integers(0, 64, (rows, letters))]
    data[:, len(before) + letters :] = np.frombuffer(after, np.uint8)
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * np.int32(width))
    return pa.StringArray.from_buffers(rows, offsets, pa.py_buffer(data))
