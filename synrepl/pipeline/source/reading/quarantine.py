"""Chunks with values that do not fit: the facts they are in are quarantined, all others are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from synrepl.core.tokens import Token
from synrepl.pipeline.source.database.stream_schema import RAW
from synrepl.pipeline.source.plan.chunks import ScanChunk
from synrepl.pipeline.source.reading.chunk_reader import ChunkReader, ReadFailed
from synrepl.pipeline.source.reading.schema import arrow_schema

#: Of a row in quarantine, as :meth:`.SourceDatabase.raw_scan` gives it.
RAW_SCHEMA = arrow_schema(RAW)


class QuarantinedRow(NamedTuple):
    """A row of a fact with a value that does not fit its column.

    :ivar reason: what the server said of the fact
    :ivar cells: JSON text, an object: every column as text, or as it is in another product's table
    """

    stream: str
    stream_id: int
    row_no: int
    writer: str
    reason: str
    cells: str


#: Takes the rows of one fact, or a part of one that is large.
Quarantine = Callable[[Sequence[QuarantinedRow]], object]


def read_or_quarantine(
    reader: ChunkReader, chunk: ScanChunk, schema: pa.Schema, quarantine: Quarantine
) -> Iterator[pa.RecordBatch]:
    """Read a chunk, and where values do not fit, all facts but those they are in.

    A chunk without any costs what it costs to read. Else it is bisected: per bad fact one
    statement for each halving of the tokens that are left. Facts stay whole: of one with a
    bad row, all rows are quarantined, so the same range gives the same rows whenever it is read.

    :param schema: of the columns that the chunk selects; ``stream_id`` has to be one
    :param quarantine: called in the order of tokens, between the batches
    :raises ReadFailed: not because of a value :raises ReadingAway: :raises Trimmed:
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
                    _quarantine(reader, rest, str(error.facts["reason"]), quarantine)


class _WholeFacts:
    """Passes rows on, but those of the last fact, of which there may be more to come.

    :ivar taken: the token up to which all has been passed on
    :ivar held: the rows that have not
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


def _quarantine(reader: ChunkReader, chunk: ScanChunk, reason: str, quarantine: Quarantine) -> None:
    for batch in reader.batches(chunk.as_text(), RAW_SCHEMA):
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        quarantine([QuarantinedRow(chunk.stream, id_, no, writer, reason, cells)
                   for id_, no, writer, cells in rows])  # fmt: skip
