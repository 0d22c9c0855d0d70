"""Makes lost and damaged data files of a lake again, from the database.

The log knows of each file its name, size, number of rows, and least and greatest stream ID. Rows of a
fact are in one file. So what a file held are the facts between these IDs, up to the table's position,
that no other file of the table has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from synrepl.core.errors import Refused
from synrepl.core.tokens import Token
from synrepl.pipeline.lake.computed_columns import file_schema
from synrepl.pipeline.lake.data_files import DataFile, FileWriter, damage_of, read_batches
from synrepl.pipeline.lake.erase.erasures import RULES, Erasures
from synrepl.pipeline.lake.erase.mask import mask
from synrepl.pipeline.lake.erase.redacted_events import RedactedEvents
from synrepl.pipeline.lake.erase.redaction_index import redaction_folder
from synrepl.pipeline.lake.erase.redactions import (
    FoundRedactions,
    RedactionSearch,
    find_redactions,
)
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.on_demand import on_demand
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.lake.table_log import lake_errors
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.plan.chunks import plan_chunks
from synrepl.pipeline.source.reading.chunk_reader import ChunkReader
from synrepl.pipeline.source.reading.quarantine import QuarantinedRow, read_or_quarantine
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.pipeline.source.writer_ranges import cap_position
from synrepl.positions.vector import PositionVector


class NotMadeAgain(Refused):
    """stream {stream!r} of the lake has lost {files}, with {expected:,} rows from token {first} to {last}, and the database has {found:,} of them{trimmed}; nothing was changed: --accept-missing makes a file of those"""


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file that cannot be read as it was written.

    :ivar found: what is there instead
    :ivar quarantined: it is a file of the stream's quarantine
    """

    stream: str
    file: DataFile
    found: str
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class WriterRows:
    """The rows of one writer in a file."""

    writer: str
    first: Token
    last: Token
    rows: int


@dataclass(frozen=True, slots=True)
class RepairedFile:
    """A file that was made again, from one or several damaged files whose tokens overlap.

    :ivar damaged: the files that it replaces
    :ivar file: the new file; None if the database has none of the rows
    :ivar held: its rows, by writer
    :ivar missing: the number of rows that the database has no longer
    """

    damaged: tuple[DamagedFile, ...]
    file: DataFile | None
    held: tuple[WriterRows, ...]
    missing: int


def find_damaged(lake: Lake, streams: Iterable[str]) -> list[DamagedFile]:
    """The files of some streams, and of their quarantines, that are missing or cannot be read.

    Reads all files. Call it within :meth:`.Lake.write_lock`.

    :raises NotInTheLake:
    :raises LakeFailed: a log cannot be read, or the object store does not give a file
    """
    found = []
    for stream in streams:
        for quarantined, table in (False, lake.table(stream)), (True, lake.quarantine(stream)):
            if table is not None:
                for file in table.files:
                    with lake_errors(table.path, "read"):
                        damage = damage_of(table.path_of(file), file)
                    if damage:
                        found.append(DamagedFile(stream, file, damage, quarantined))
    return found


def repair(
    spark: SparkSession,
    lake: Lake,
    source: SourceDatabase,
    dsn: str,
    damaged: Sequence[DamagedFile],
    *,
    accept_missing: bool = False,
) -> list[RepairedFile]:
    """Make the damaged files of streams again; those of quarantines are left alone.

    Call it within :meth:`.Lake.write_lock`. What has been erased is erased from the new files, too.
    Each is committed as soon as it is written.

    :param damaged: as :func:`find_damaged` finds them
    :param accept_missing: also if the database does not have all of the rows any longer
    :raises NotMadeAgain: :raises LakeFailed: :raises ReadingAway: :raises ReadFailed: :raises Trimmed:
    """
    mine = [each for each in damaged if not each.quarantined]
    streams = sorted({each.stream for each in mine})
    source.observe(streams)
    repairs = []
    for stream in streams:
        table = lake.table(stream)
        repairs += [_Repair(table, source, dsn, each, mine) for each in _overlapping(mine, stream)]
    erasures = Erasures(
        frozenset(filter(None, source.erased_subjects())),
        _redacted_events(spark, lake, mine, repairs),
    )
    return [each.run(erasures, accept_missing) for each in repairs]


class _Repair:
    """The repair of damaged files of one stream whose IDs overlap."""

    def __init__(
        self,
        table: StreamTable,
        source: SourceDatabase,
        dsn: str,
        group: Sequence[DamagedFile],
        damaged: Sequence[DamagedFile],
    ) -> None:
        self.table = table
        self._source = source
        self._dsn = dsn
        self._group = group
        self._stream_schema = table.stream_schema
        self._low = min(each.file.low for each in group)
        self._high = max(each.file.high for each in group)
        self._lost = {each.file.name for each in damaged}

    def source_rows(self) -> Iterator[pa.RecordBatch]:
        """The rows that the files have held, as the database has them."""
        stream, schema = self.table.stream, arrow_schema(self._stream_schema.columns)
        first, last = self._tokens
        start = PositionVector({}, first - 1)
        end = cap_position(PositionVector(), self.table.position, last)
        names = [column.name for column in self._stream_schema.columns]
        reader = ChunkReader(self._dsn, "repair")
        others = self._ids_of_others()
        for chunk in plan_chunks(self._source, {stream: start}, {stream: end}, {stream: names}):
            for batch in read_or_quarantine(reader, chunk, schema, _leave_out):
                ids = batch.column("stream_id")
                inside = pc.and_(pc.greater_equal(ids, self._low), pc.less_equal(ids, self._high))
                wanted = pc.and_(inside, pc.invert(pc.is_in(ids, value_set=others)))
                yield batch.filter(wanted)

    def run(self, erasures: Erasures, accept_missing: bool) -> RepairedFile:
        """Write a file with the rows, and commit it in the place of the damaged ones."""
        schema, held = file_schema(self._stream_schema), _Held()
        writer = FileWriter(self.table.path, schema, self.table.epoch)
        for batch in self.source_rows():
            masked = mask(batch, self._stream_schema, erasures)
            held.add(masked)
            writer.write(masked)
        new = writer.close()
        old = [each.file for each in self._group]
        expected, found = sum(file.rows for file in old), 0 if new is None else new.rows
        if found > expected or (found < expected and not accept_missing):
            if new is not None:
                self.table.path_of(new).unlink()
            raise self._refusal(expected, found)
        self.table.rewrite(old, [] if new is None else [new], change=found != expected)
        return RepairedFile(tuple(self._group), new, held.rows, expected - found)

    @property
    def _tokens(self) -> tuple[Token, Token]:
        if self._stream_schema.counts_down:
            return -self._high, -self._low
        return self._low, self._high

    def _ids_of_others(self) -> pa.Array:
        """The stream IDs of facts between those of the files that other files have."""
        ids = pa.schema([("stream_id", pa.int64())])
        found = [np.empty(0, np.int64)]
        for file in self.table.files:
            if file.name in self._lost or file.high < self._low or file.low > self._high:
                continue
            for batch in read_batches(self.table.path_of(file), ids):
                found.append(np.unique(batch.column(0).to_numpy(zero_copy_only=False)))
        return pa.array(np.unique(np.concatenate(found)), pa.int64())

    def _refusal(self, expected: int, found: int) -> NotMadeAgain:
        first, last = self._tokens
        trimmed = self._source.observe([self.table.stream])[self.table.stream].trimmed
        return NotMadeAgain(
            stream=self.table.stream,
            files=", ".join(each.file.name for each in self._group)[:500],
            expected=expected,
            first=first,
            last=last,
            found=found,
            trimmed=f", which has trimmed the stream up to {trimmed}" if trimmed >= first else "",
        )


class _Held:
    """Counts rows by writer."""

    def __init__(self) -> None:
        self._found: dict[str, WriterRows] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch."""
        writers = batch.column("writer")
        for writer in pc.unique(writers).to_pylist():
            ids = pc.abs(batch.column("stream_id").filter(pc.equal(writers, writer)))
            ends = pc.min_max(ids).as_py()
            known = self._found.get(writer, WriterRows(writer, ends["min"], ends["max"], 0))
            self._found[writer] = WriterRows(
                writer,
                min(known.first, ends["min"]),
                max(known.last, ends["max"]),
                known.rows + len(ids),
            )

    @property
    def rows(self) -> tuple[WriterRows, ...]:
        """The rows, in the order of the writers' names."""
        return tuple(self._found[writer] for writer in sorted(self._found))


def _overlapping(damaged: Sequence[DamagedFile], stream: str) -> list[list[DamagedFile]]:
    """Group the files of a stream whose IDs overlap."""
    groups: list[list[DamagedFile]] = []
    high = 0
    mine = [each for each in damaged if each.stream == stream]
    for each in sorted(mine, key=lambda each: (each.file.low, each.file.high)):
        if groups and each.file.low <= high:
            groups[-1].append(each)
            high = max(high, each.file.high)
        else:
            groups.append([each])
            high = each.file.high
    return groups


def _redacted_events(
    spark: SparkSession, lake: Lake, damaged: Sequence[DamagedFile], repairs: Sequence[_Repair]
) -> RedactedEvents:
    """The events that are redacted by the files that can be read, and by what the others have held."""
    lost = {each.file.name for each in damaged}
    found = FoundRedactions(redaction_folder(lake))
    for rule in RULES:
        if not lake.has_stream(rule.stream):
            continue
        table = lake.table(rule.stream)
        if not rule.fits(table.stream_schema):
            continue
        whole = [file for file in table.files if file.name not in lost]
        search = RedactionSearch(rule)
        find_redactions(on_demand(spark), table, whole, search, found)
        for each in repairs:
            if each.table.stream == rule.stream:
                found.add_rows(each.source_rows(), search)
    return found.redacted.events()


def _leave_out(rows: Sequence[QuarantinedRow]) -> None:
    """Ignore rows that are in the lake's quarantine, and not in its tables."""
