"""The rows of several files as one sequence, in the order of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from synrepl.core.tokens import Token
from synrepl.pipeline.lake.data_files import read_batches

#: Rows of one file that are held at a time.
BATCH_ROWS = 8192

#: A row's place: its token, and its number in the fact.
_Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MergeInput:
    """A file to be merged.

    :ivar first: no row in it has a token below
    """

    path: Path
    first: Token


def merge_files(
    sources: Sequence[MergeInput], schema: pa.Schema, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """All rows of all files, each once.

    They come in order as far as each file's are; files whose ranges overlap are held together,
    a batch of each, and no others. Memory follows the overlap, not how many files there are.

    :param schema: of the result; columns that a file lacks are null
    """
    waiting = sorted(sources, key=lambda source: source.first, reverse=True)
    opened: list[_MergeCursor] = []
    while opened or waiting:
        if not opened:
            opened = _open(waiting.pop(), schema, batch_rows)
            continue
        # Up to where all that are open can be written. Who may have rows below it joins first.
        cut = min(run.last for run in opened)
        while waiting and waiting[-1].first <= cut[0]:
            opened += _open(waiting.pop(), schema, batch_rows)
            cut = min(run.last for run in opened)
        yield _sorted([run.taken(cut) for run in opened], schema)
        opened = [run for run in opened if run.more()]


class _MergeCursor:
    """A file, and the rows of it that come next."""

    def __init__(self, rest: Iterator[pa.RecordBatch]) -> None:
        self._rest = rest
        self._held: pa.RecordBatch | None = None

    def more(self) -> bool:
        """Hold rows; False when there are no more."""
        while self._held is None or not self._held.num_rows:
            self._held = next(self._rest, None)
            if self._held is None:
                return False
        return True

    @property
    def last(self) -> _Place:
        """The place of the last row held."""
        tokens, numbers = _places(self._held)
        token = tokens.max()
        return int(token), int(numbers[tokens == token].max())

    def taken(self, cut: _Place) -> pa.RecordBatch:
        """The rows held that are no further than a place; held no longer."""
        assert self._held is not None
        tokens, numbers = _places(self._held)
        ready = (tokens < cut[0]) | ((tokens == cut[0]) & (numbers <= cut[1]))
        if ready.all():
            taken, self._held = self._held, None
            return taken
        taken = self._held.filter(pa.array(ready))
        self._held = self._held.filter(pa.array(~ready))
        return taken


def _open(source: MergeInput, schema: pa.Schema, batch_rows: int) -> list[_MergeCursor]:
    run = _MergeCursor(read_batches(source.path, schema, batch_rows=batch_rows))
    return [run] if run.more() else []


def _sorted(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    whole = [part for part in parts if part.num_rows]
    batch = whole[0] if len(whole) == 1 else _one(whole, schema)
    tokens, numbers = _places(batch)
    order = np.lexsort((numbers, tokens))
    if (order[:-1] < order[1:]).all():
        return batch
    return batch.take(pa.array(order))


def _one(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    columns: list[Any] = [
        pa.concat_arrays([part.column(name) for part in parts]) for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _places(batch: pa.RecordBatch | None) -> tuple[Any, Any]:
    assert batch is not None
    ids = batch.column("stream_id").to_numpy(zero_copy_only=False)
    return np.abs(ids), batch.column("row_no").to_numpy(zero_copy_only=False)
