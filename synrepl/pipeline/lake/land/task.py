"""Lands chunks in a task: reads them from the database and writes them to files of the lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from synrepl.pipeline.lake.computed_columns import file_schema
from synrepl.pipeline.lake.data_files import DataFile, FileWriter, confirm_files
from synrepl.pipeline.lake.erase.erasures import Erasures
from synrepl.pipeline.lake.erase.mask import mask, mask_quarantined
from synrepl.pipeline.lake.storage import LakePath, ensure_folder
from synrepl.pipeline.source.database.stream_schema import HEAD, QUARANTINE_CELLS, StreamSchema
from synrepl.pipeline.source.plan.chunks import ScanChunk
from synrepl.pipeline.source.reading.chunk_reader import ChunkReader
from synrepl.pipeline.source.reading.quarantine import QuarantinedRow, read_or_quarantine
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.positions.vector import PositionVector

#: Schema of a task's report to the driver, one row per file.
LANDED = pa.schema([("stream", pa.string()), ("quarantined", pa.bool_()), ("file", pa.string())])

_QUARANTINE_SCHEMA = arrow_schema((*HEAD, *QUARANTINE_CELLS))


@dataclass(frozen=True, slots=True)
class StreamTask:
    """How to land the chunks of one stream.

    :ivar stream_schema: the columns to read, and those of its table that are computed from them
    :ivar folder: the folder of its table
    :ivar quarantine: the folder of its quarantine
    :ivar epoch: of its table, for the names of files
    :ivar quarantine_epoch: of its quarantine
    :ivar quarantined_upto: rows up to this position are in quarantine already
    :ivar snapshot: the name of the snapshot at which all tasks read it; "" for one of each statement
    """

    stream_schema: StreamSchema
    folder: LakePath
    quarantine: LakePath
    quarantined_upto: PositionVector
    epoch: int = 0
    quarantine_epoch: int = 0
    snapshot: str = ""


#: The type of :func:`land_part`, and of functions that wrap it.
LandPart = Callable[[str, Mapping[str, StreamTask], Erasures, bytes], Iterator[pa.RecordBatch]]


def land_part(
    dsn: str, streams: Mapping[str, StreamTask], erasures: Erasures, part: bytes
) -> Iterator[pa.RecordBatch]:
    """Read the chunks of a part, and write a file for each of its streams.

    :param part: chunks as JSON, with those of one stream next to each other
    """
    reader = ChunkReader(dsn, "lake")
    written: list[tuple[LakePath, DataFile]] = []
    reports: list[dict[str, object]] = []
    chunks = msgspec.json.decode(part, type=list[ScanChunk])
    with reader.reading_together():
        for stream in dict.fromkeys(chunk.stream for chunk in chunks):
            mine = [chunk for chunk in chunks if chunk.stream == stream]
            task = streams[stream]
            for quarantined, file in _land(reader, task, erasures, mine):
                written.append((task.quarantine if quarantined else task.folder, file))
                encoded = msgspec.json.encode(file).decode()
                reports.append({"stream": stream, "quarantined": quarantined, "file": encoded})
    confirm_files(written)
    yield pa.RecordBatch.from_pylist(reports, schema=LANDED)


def _land(
    reader: ChunkReader, task: StreamTask, erasures: Erasures, chunks: Sequence[ScanChunk]
) -> Iterator[tuple[bool, DataFile]]:
    schema = arrow_schema(task.stream_schema.columns)
    file = FileWriter(task.folder, file_schema(task.stream_schema), task.epoch)
    quarantined = FileWriter(task.quarantine, _QUARANTINE_SCHEMA, task.quarantine_epoch)

    def quarantine(rows: Sequence[QuarantinedRow]) -> None:
        new = [row for row in rows if abs(row.stream_id) > task.quarantined_upto[row.writer]]
        if new:
            ensure_folder(task.quarantine)
            quarantined.write(mask_quarantined(_quarantine_batch(new), erasures))

    for chunk in chunks:
        for batch in read_or_quarantine(reader, chunk.at(task.snapshot), schema, quarantine):
            file.write(mask(batch, task.stream_schema, erasures))
    for is_quarantined, writer in (False, file), (True, quarantined):
        written = writer.complete()
        if written is not None:
            yield is_quarantined, written


def _quarantine_batch(rows: Sequence[QuarantinedRow]) -> pa.RecordBatch:
    columns = [
        [row.stream_id for row in rows],
        [row.row_no for row in rows],
        [row.writer for row in rows],
        [row.reason for row in rows],
        [row.cells for row in rows],
    ]
    arrays = [
        pa.array(cells, field.type)
        for cells, field in zip(columns, _QUARANTINE_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_QUARANTINE_SCHEMA)
