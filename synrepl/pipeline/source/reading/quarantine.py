"""Reads chunks with values that do not fit their columns: their facts are quarantined, and all others read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from synrepl.core.tokens import Token
from synrepl.pipeline.source.database.stream_schema import RAW
from synrepl.pipeline.source.plan.chunks import ScanChunk
from synrepl.pipeline.source.reading.chunk_reader import ChunkReader, ReadFailed
from synrepl.pipeline.source.reading.schema import arrow_schema

#: Arrow schema of the rows that :meth:`.SourceDatabase.raw_scan` selects.
RAW_SCHEMA = arrow_schema(RAW)


class QuarantinedRow(NamedTuple):
    """A row of a fact with a value that does not fit its column.

    :ivar reason: the server's error message for the fact
    :ivar cells: a JSON object with every column as text, or the row of Synapse's table
    """

    stream: str
    stream_id: int
    row_no: int
    writer: str
    reason: str
    cells: str


#: Called with the rows of one fact, or with a part of a large one.
Quarantine = Callable[[Sequence[QuarantinedRow]], object]


def read_or_quarantine(
    reader: ChunkReader, chunk: ScanChunk, schema: pa.Schema, quarantine: Quarantine
) -> Iterator[pa.RecordBatch]:
    """Read a chunk, and quarantine the facts with a value that does not fit its column.

    :param quarantine: called in the order of tokens, between the batches
    :raises: the errors of :func:`read_with_bad_rows`
    """
    for found in read_with_bad_rows(reader, chunk, schema):
        if isinstance(found, pa.RecordBatch):
            yield found
        else:
            quarantine(found)


def read_with_bad_rows(
    reader: ChunkReader, chunk: ScanChunk, schema: pa.Schema
) -> Iterator[pa.RecordBatch | Sequence[QuarantinedRow]]:
    """Read a chunk: batches, and in their place the rows of facts with a value that does not fit.

    A chunk without such values costs nothing extra. Otherwise it is bisected, with one statement
    per bad fact and halving. Facts stay whole: all rows of a fact with a bad row are given as bad
    rows, so a range has the same rows each time it is read.

    :param schema: of the columns that the chunk selects, which include ``stream_id``
    :raises ReadFailed: for another reason than a value :raises ReadingAway: :raises Trimmed:
    """
    with reader.keeping_connection():
        waiting = [chunk]
        while waiting:
            part = waiting.pop()
            facts = _WholeFacts(part.after)
            try:
                for batch in reader.batches(part, schema):
                    yield from facts.of(batch)
                yield from facts.held
            except ReadFailed as error:
                if not error.is_bad_value:
                    raise
                reader.check_not_trimmed(part)
                rest = part.within(facts.taken, part.upto)
                if rest.upto - rest.after > 1:
                    middle = (rest.after + rest.upto) // 2
                    waiting += [rest.within(middle, rest.upto), rest.within(rest.after, middle)]
                else:
                    yield from _as_text(reader, rest, str(error.facts["reason"]))


class _WholeFacts:
    """Passes rows on, except those of the last fact, which may be incomplete.

    :ivar taken: the token up to which all rows have been passed on
    :ivar held: the rows that have not been passed on
    """

    def __init__(self, taken: Token) -> None:
        self.taken = taken
        self.held: list[pa.RecordBatch] = []

    def of(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        ids = batch.column("stream_id")
        last, begins = ids[-1], batch.num_rows - 1
        while begins and ids[begins - 1] == last:
            begins -= 1
        if begins or (self.held and self.held[0].column("stream_id")[0] != last):
            yield from self.held
            self.held = []
            if begins:
                yield batch.slice(0, begins)
            self.taken = abs(last.as_py()) - 1
        self.held.append(batch.slice(begins))


def _as_text(
    reader: ChunkReader, chunk: ScanChunk, reason: str
) -> Iterator[Sequence[QuarantinedRow]]:
    for batch in reader.batches(chunk.as_text(), RAW_SCHEMA):
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        yield [QuarantinedRow(chunk.stream, id_, no, writer, reason, cells)
               for id_, no, writer, cells in rows]  # fmt: skip
