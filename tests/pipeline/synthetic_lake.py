"""Lakes for tests of jobs, created from given rows without landing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from synrepl.pipeline.lake.data_files import DataFile
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.plan.chunks import plan_chunks
from synrepl.pipeline.source.reading.chunk_reader import ChunkReader
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.positions.vector import PositionVector
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.columns import columns
from synrepl.streams.synapse import SYNAPSE_STREAMS

Rows = Sequence[Mapping[str, Any]]

_CATALOGUE = Catalogue(SYNAPSE_STREAMS)


def schema_of(stream: str) -> StreamSchema:
    """The schema of a stream of Synapse."""
    known = _CATALOGUE[stream]
    return StreamSchema(stream, known.counts_down, columns(known))


def add(
    lake: Lake,
    stream_schema: StreamSchema,
    rows: Rows,
    files: int = 1,
    end: PositionVector | None = None,
) -> None:
    """Add rows to a stream's table; missing cells are null.

    :param files: parts in which they are written
    :param end: the position of the table then; by default, that of the last row of all
    """
    table = lake.ensure_table(stream_schema)
    schema = arrow_schema(stream_schema.columns)
    written = []
    begun = len(table.files)
    size = max(1, -(-len(rows) // files))
    for number, first in enumerate(range(0, len(rows), size), begun):
        part = [
            {"row_no": 0, "writer": "w", **dict.fromkeys(schema.names[3:]), **row}
            for row in rows[first : first + size]
        ]
        ids = [row["stream_id"] for row in part]
        path = table.path / f"part-{number}.parquet"
        relaxed = pa.schema([field.with_nullable(True) for field in schema])
        pq.write_table(pa.Table.from_pylist(part, schema=relaxed), path)
        written.append(DataFile(path.name, path.stat().st_size, len(part), min(ids), max(ids)))
    last = max([table.position.linear, *(abs(row["stream_id"]) for row in rows)])
    table.append(written, table.position, PositionVector({}, last) if end is None else end)


def foreign_rows(dsn: str) -> dict[str, tuple[StreamSchema, list[dict[str, Any]]]]:
    """All rows of a real Synapse's database, by stream."""
    source = open_source_database(dsn, "tests")
    reader = ChunkReader(dsn)
    found = {}
    try:
        for stream in source.streams:
            stream_schema = source.stream_schema(stream)
            names = {stream: [column.name for column in stream_schema.columns]}
            end = {stream: PositionVector({}, 1 << 40)}
            schema = arrow_schema(stream_schema.columns)
            found[stream] = (
                stream_schema,
                [
                    row
                    for chunk in plan_chunks(source, {}, end, names)
                    for batch in reader.batches(chunk, schema)
                    for row in batch.to_pylist()
                ],
            )
    finally:
        source.close()
    return found


def begin(path: Path) -> Lake:
    """An empty lake."""
    return Lake.open_or_create(path, "tests", False)
