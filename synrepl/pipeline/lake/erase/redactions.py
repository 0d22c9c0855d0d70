"""Finds redactions among the rows of a lake: in this process if they are few, else in tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.lake.data_files import DataFile, read_batches
from synrepl.pipeline.lake.erase.erasures import ErasureRule
from synrepl.pipeline.lake.erase.redacted_events import (
    RedactedEvents,
    RedactedEventsCollector,
    StoredRedactedEvents,
    digests_of,
)
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

#: Maximum number of events that a task sends to the driver, or that a record contains; more are in files.
MOST_INLINE = 512

#: What a task found: two sets of redacted events, as JSON.
_FOUND = pa.schema([("redacted", pa.binary()), ("new", pa.binary())])


@dataclass(frozen=True, slots=True)
class RedactionSearch:
    """What to look for in rows of a stream; pickled for tasks.

    :ivar since: the position from which on redactions are looked for
    :ivar new_since: the one above which they are new, which is at or above ``since`` as far as they can be compared
    """

    rule: ErasureRule
    since: PositionVector = field(default_factory=PositionVector)
    new_since: PositionVector = field(default_factory=PositionVector)


class FoundRedactions:
    """The events that redactions among some rows redact.

    :ivar redacted: all of them
    :ivar new: those by new redactions
    :param folder: for files with many of them
    :param redacted: the first ones, which are not new
    """

    def __init__(self, folder: LakePath, redacted: RedactedEvents | None = None) -> None:
        self.folder = folder
        self.redacted = RedactedEventsCollector(folder, redacted)
        self.new = RedactedEventsCollector(folder)

    def add_rows(self, batches: Iterable[pa.RecordBatch], search: RedactionSearch) -> None:
        """Add those of rows of a stream."""
        rule = search.rule
        for batch in batches:
            found = batch.filter(_are_redacting(batch, rule))
            found = found.filter(pa.array(_above(search.since, found)))
            if not found.num_rows:
                continue
            # A room ID that has been erased itself is no longer known.
            rooms = found.column(rule.within)
            any_roomless = bool(rooms.null_count) or bool(pc.any(pc.equal(rooms, "")).as_py())
            digests = digests_of(rooms.to_pylist(), found.column(rule.trigger).to_pylist())
            self.redacted.add(RedactedEvents(digests, any_roomless))
            self.new.add(RedactedEvents(digests[_above(search.new_since, found)], any_roomless))


def _are_redacting(batch: pa.RecordBatch, rule: ErasureRule) -> pa.Array:
    """Which rows are redactions."""
    redacting = pc.is_valid(batch.column(rule.trigger))
    if rule.kind is not None:
        kinds = pc.equal(batch.column("kind"), rule.kind)
        redacting = pc.and_(redacting, pc.fill_null(kinds, False))
    if rule.unless is not None:
        unless = pc.fill_null(batch.column(rule.unless), False)
        redacting = pc.and_(redacting, pc.invert(unless))
    return redacting


def _above(
    position: PositionVector, batch: pa.RecordBatch
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows are above a position."""
    tokens = np.abs(batch.column("stream_id").to_numpy(zero_copy_only=False))
    writers = batch.column("writer").dictionary_encode()
    upto = np.array([position[name] for name in writers.dictionary.to_pylist()], np.int64)
    codes = writers.indices.to_numpy(zero_copy_only=False)
    return tokens > upto[codes] if len(tokens) else np.zeros(0, bool)


def find_redactions(
    spark: SessionOnDemand,
    table: StreamTable,
    files: Sequence[DataFile],
    search: RedactionSearch,
    found: FoundRedactions,
) -> None:
    """Find the redactions in some files of a stream's table.

    :param spark: called for a session only if there is much to read
    :param found: they are added to it
    :raises FolderNotShared: :raises DataFileDamaged:
    """
    rule = search.rule
    wanted = {"stream_id", "writer", rule.within, rule.trigger}
    wanted |= {name for name in (rule.unless, "kind" if rule.kind else None) if name is not None}
    schema = arrow_schema(
        column._replace(nullable=True)
        for column in table.stream_schema.columns
        if column.name in wanted
    )
    if sum(file.size for file in files) <= BYTES_HERE:
        for file in files:
            found.add_rows(read_batches(table.path_of(file), schema), search)
        return
    rows = sum(file.rows for file in files)
    parts = [msgspec.json.encode(part) for part in pack(files, lambda file: file.size, TASK_BYTES)]
    work = partial(_search, table.path, found.folder, schema, search)
    for row in run_tasks(spark, parts, work, _FOUND, rows):
        for name, events in ("redacted", found.redacted), ("new", found.new):
            stored = msgspec.json.decode(row[name], type=StoredRedactedEvents)
            events.add(stored.events(found.folder))


def _search(
    table: LakePath, folder: LakePath, schema: pa.Schema, search: RedactionSearch, part: bytes
) -> Iterator[pa.RecordBatch]:
    found = FoundRedactions(folder)
    for file in msgspec.json.decode(part, type=list[DataFile]):
        found.add_rows(read_batches(table / file.name, schema), search)
    row = {
        name: msgspec.json.encode(StoredRedactedEvents.of(events.events(MOST_INLINE)))
        for name, events in (("redacted", found.redacted), ("new", found.new))
    }
    yield pa.RecordBatch.from_pylist([row], schema=_FOUND)
