"""Finds redactions among the rows of a lake: in this process if they are few, else in tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.lake.data_files import DataFile, read_batches
from synrepl.pipeline.lake.erase.erasures import ErasureRule
from synrepl.pipeline.lake.erase.redacted_events import RedactedEvents, digests_of
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from synrepl.pipeline.lake.spark_tasks import pack, run_tasks
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.positions.vector import PositionVector

#: Total size of files up to which they are read in this process, in bytes: in about a second.
BYTES_HERE = 64 << 20

#: Total size of the files that one task reads, in bytes.
TASK_BYTES = 256 << 20

#: What a task found in a batch: arrays as their bytes, so that Spark passes on one value for each.
_FOUND = pa.schema(
    [
        ("digests", pa.binary()),
        ("tokens", pa.binary()),
        ("codes", pa.binary()),
        ("writers", pa.list_(pa.string())),
        ("any_roomless", pa.bool_()),
    ]
)

_ROW = np.dtype([("digest", "S16"), ("token", np.int64), ("code", np.int32)])


class FoundRedactions(NamedTuple):
    """Redactions among some rows.

    :ivar digests: of the events that they redact
    :ivar tokens: the token of each redaction
    :ivar codes: the index of its writer in ``writers``
    :ivar any_roomless: the room of one is not known
    """

    digests: Any
    tokens: Any
    codes: Any
    writers: Sequence[str]
    any_roomless: bool


def redacted_events(found: Iterable[FoundRedactions]) -> RedactedEvents:
    """The events that some redactions redact."""
    parts = [*found]
    digests = [each.digests for each in parts]
    return RedactedEvents(
        np.concatenate(digests) if digests else (), any(each.any_roomless for each in parts)
    )


def redactions_among(
    batches: Iterable[pa.RecordBatch], rule: ErasureRule
) -> Iterator[FoundRedactions]:
    """The redactions among rows of a stream, for each batch that has some."""
    for batch in batches:
        redacting = pc.is_valid(batch.column(rule.trigger))
        if rule.kind is not None:
            kinds = pc.equal(batch.column("kind"), rule.kind)
            redacting = pc.and_(redacting, pc.fill_null(kinds, False))
        if rule.unless is not None:
            unless = pc.fill_null(batch.column(rule.unless), False)
            redacting = pc.and_(redacting, pc.invert(unless))
        found = batch.filter(redacting)
        if not found.num_rows:
            continue
        # A room ID that has been erased itself is no longer known.
        rooms = found.column(rule.within)
        writers = found.column("writer").dictionary_encode()
        yield FoundRedactions(
            digests_of(rooms.to_pylist(), found.column(rule.trigger).to_pylist()),
            np.abs(found.column("stream_id").to_numpy(zero_copy_only=False)),
            writers.indices.to_numpy(zero_copy_only=False).astype(np.int32),
            writers.dictionary.to_pylist(),
            bool(rooms.null_count) or bool(pc.any(pc.equal(rooms, "")).as_py()),
        )


def find_redactions(
    spark: SessionOnDemand, table: StreamTable, files: Sequence[DataFile], rule: ErasureRule
) -> Iterator[FoundRedactions]:
    """The redactions in some files of a stream's table.

    :param spark: called for a session only if there is much to read
    """
    wanted = {"stream_id", "writer", rule.within, rule.trigger}
    wanted |= {name for name in (rule.unless, "kind" if rule.kind else None) if name is not None}
    schema = arrow_schema(
        column._replace(nullable=True)
        for column in table.stream_schema.columns
        if column.name in wanted
    )
    if sum(file.size for file in files) <= BYTES_HERE:
        for file in files:
            yield from redactions_among(read_batches(table.path_of(file), schema), rule)
        return
    rows = sum(file.rows for file in files)
    parts = [msgspec.json.encode(part) for part in pack(files, lambda file: file.size, TASK_BYTES)]
    for row in run_tasks(spark, parts, partial(_search, table.path, schema, rule), _FOUND, rows):
        yield FoundRedactions(
            np.frombuffer(row["digests"], _ROW["digest"]),
            np.frombuffer(row["tokens"], np.int64),
            np.frombuffer(row["codes"], np.int32),
            row["writers"],
            row["any_roomless"],
        )


def _search(
    folder: LakePath, schema: pa.Schema, rule: ErasureRule, part: bytes
) -> Iterator[pa.RecordBatch]:
    for file in msgspec.json.decode(part, type=list[DataFile]):
        for found in redactions_among(read_batches(folder / file.name, schema), rule):
            row = {
                "digests": found.digests.tobytes(),
                "tokens": found.tokens.tobytes(),
                "codes": found.codes.tobytes(),
                "writers": found.writers,
                "any_roomless": found.any_roomless,
            }
            yield pa.RecordBatch.from_pylist([row], schema=_FOUND)


class RedactionCache:
    """The redactions of a lake, 28 bytes each. Keep one object, because it reads each file once."""

    def __init__(self) -> None:
        self._streams: dict[str, _StreamRedactions] = {}

    def update(self, spark: SessionOnDemand, table: StreamTable, rule: ErasureRule) -> None:
        """Read the files of a stream's table that have not been read yet."""
        known = self._streams.setdefault(table.stream, _StreamRedactions())
        files = table.files
        new = [file for file in files if file.name not in known.read]
        known.add(find_redactions(spark, table, new, rule))
        known.read = frozenset(file.name for file in files)

    def known(self, stream: str) -> RedactedEvents:
        """The events that the rows of a stream redact."""
        return self._streams[stream].events()

    def above(self, stream: str, since: PositionVector) -> RedactedEvents:
        """Those that rows above a position redact."""
        return self._streams[stream].above(since)


class _StreamRedactions:
    """The redactions of one stream.

    :ivar read: names of the files that have been read
    """

    def __init__(self) -> None:
        self.read: frozenset[str] = frozenset()
        self._rows = np.empty(0, _ROW)
        self._writers: list[str] = []
        self._any_roomless = False
        self._events: RedactedEvents | None = None

    def add(self, some: Iterable[FoundRedactions]) -> None:
        parts = [self._rows]
        for found in some:
            codes = np.array([self._code(writer) for writer in found.writers], np.int32)
            rows = np.empty(len(found.digests), _ROW)
            rows["digest"], rows["token"] = found.digests, found.tokens
            rows["code"] = codes[found.codes]
            parts.append(rows)
            self._any_roomless = self._any_roomless or found.any_roomless
        if len(parts) > 1:
            # Files that were compacted are read again.
            self._rows = np.unique(np.concatenate(parts))
            self._events = None

    def _code(self, writer: str) -> int:
        if writer not in self._writers:
            self._writers.append(writer)
        return self._writers.index(writer)

    def events(self) -> RedactedEvents:
        if self._events is None:
            self._events = RedactedEvents(self._rows["digest"], self._any_roomless)
        return self._events

    def above(self, since: PositionVector) -> RedactedEvents:
        after = np.array([since[writer] for writer in self._writers], np.int64)
        new = self._rows[self._rows["token"] > after[self._rows["code"]]]
        return RedactedEvents(new["digest"], self._any_roomless)
