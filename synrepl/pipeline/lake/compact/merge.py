"""Merges the rows of several files in the order of tokens, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from synrepl.core.tokens import Token
from synrepl.pipeline.lake.data_files import read_batches

#: Number of rows of one file held at a time.
BATCH_ROWS = 8192

#: A row's sort key: its token and its number in the fact.
_Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MergeInput:
    """A file to merge.

    :ivar first: no row in it has a lower token
    """

    path: Path
    first: Token


def merge_files(
    sources: Sequence[MergeInput], schema: pa.Schema, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of all files, each once.

    The result is ordered if each file is. Only files whose ranges overlap are open at a time, with
    a batch of each. So memory depends on the overlap, not on the number of files.

    :param schema: of the result; columns that a file lacks are null
    """
    waiting = sorted(sources, key=lambda source: source.first, reverse=True)
    opened: list[_MergeCursor] = []
    while opened or waiting:
        if not opened:
            opened = _open(waiting.pop(), schema, batch_rows)
            continue
        # All open files have rows up to here. Files that may have lower rows are opened first.
        cut = min(run.last for run in opened)
        while waiting and waiting[-1].first <= cut[0]:
            opened += _open(waiting.pop(), schema, batch_rows)
            cut = min(run.last for run in opened)
        yield _sorted([run.taken(cut) for run in opened], schema)
        opened = [run for run in opened if run.more()]


class _MergeCursor:
    """An open file and the rows of it that come next."""

    def __init__(self, rest: Iterator[pa.RecordBatch]) -> None:
        self._rest = rest
        self._held: pa.RecordBatch | None = None

    def more(self) -> bool:
        """Make sure that rows are held; False if there are no more."""
        while self._held is None or not self._held.num_rows:
            self._held = next(self._rest, None)
            if self._held is None:
                return False
        return True

    @property
    def last(self) -> _Place:
        """The sort key of the last row held."""
        tokens, numbers = _places(self._held)
        token = tokens.max()
        return int(token), int(numbers[tokens == token].max())

    def taken(self, cut: _Place) -> pa.RecordBatch:
        """Take out the rows held up to a sort key."""
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
