"""Masks rows: empties the cells that contain what is to be erased."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.lake.erase.erasures import Erasures, rules_for
from synrepl.pipeline.lake.erase.text_search import TextSearch
from synrepl.pipeline.source.database.stream_schema import HEAD, StreamSchema

_HEADS = frozenset(column.name for column in HEAD)


def mask(batch: pa.RecordBatch, stream_schema: StreamSchema, erasures: Erasures) -> pa.RecordBatch:
    """Empty the cells of rows that contain what is to be erased.

    - A text that equals a subject becomes null, and so does such an element of ``text[]``.
    - JSON with a subject among its strings, in a JSON or text column, becomes null as a whole.
    - In rows of redacted events, the columns listed in :data:`.RULES` become null.

    Stream ID, row number and writer stay. Masking is idempotent.

    :param batch: some or all of the stream's columns. A column becomes nullable if one of its cells
        is emptied; in a lake's tables they all are
    :returns: the same object if there was nothing to empty
    """
    if not erasures or not batch.num_rows:
        return batch
    emptied = _redacted(batch, stream_schema, erasures)
    texts = _texts(erasures.subjects) if erasures.subjects else None
    columns: dict[int, Any] = {}
    for at, field in enumerate(batch.schema):
        if field.name in _HEADS:
            continue
        column = found = batch.column(at)
        if texts is not None:
            found = _without(texts, column)
        if field.name in emptied:
            found = _nulled(found, emptied[field.name])
        if found is not column:
            columns[at] = found
    if not columns:
        return batch
    return _replaced(batch, columns)


def mask_quarantined(batch: pa.RecordBatch, erasures: Erasures) -> pa.RecordBatch:
    """Empty every text of quarantined rows that *contains* a subject.

    Also the reason, which may quote a value. Stream ID, row number and writer stay.

    :returns: the same object if there was nothing to empty
    """
    if not erasures.subjects or not batch.num_rows:
        return batch
    texts = _texts(erasures.subjects)
    columns: dict[int, Any] = {}
    for at, field in enumerate(batch.schema):
        if field.name not in _HEADS and pa.types.is_string(field.type):
            column = batch.column(at)
            found = _nulled(column, texts.anywhere(column))
            if found is not column:
                columns[at] = found
    return _replaced(batch, columns) if columns else batch


# A task masks many batches by the same subjects.
_texts = lru_cache(maxsize=4)(TextSearch)


def _without(texts: TextSearch, column: Any) -> Any:
    if pa.types.is_string(column.type):
        if column.null_count == len(column):
            return column
        return _nulled(column, pc.or_(texts.equal(column), texts.within(column)))
    if pa.types.is_list(column.type):
        elements = column.flatten()
        if not len(elements):
            return column
        gone = pc.or_(texts.equal(elements), texts.within(elements))
        if not pc.any(gone).as_py():
            return column
        rest = iter(_nulled(elements, gone).to_pylist())
        return pa.array(
            [None if cell is None else [next(rest) for _ in cell] for cell in column.to_pylist()],
            column.type,
        )
    return column


def _redacted(
    batch: pa.RecordBatch, stream_schema: StreamSchema, erasures: Erasures
) -> dict[str, Any]:
    """By column, which rows have a cell that a redaction empties."""
    found: dict[str, Any] = {}
    if not erasures.redacted:
        return found
    for rule in rules_for(stream_schema):
        here = pa.array(np.zeros(batch.num_rows, bool))
        for name in rule.cleared:
            here = pc.or_(here, pc.is_valid(batch.column(name)))
        if rule.kind is not None:
            here = pc.and_(here, pc.fill_null(pc.equal(batch.column("kind"), rule.kind), False))
        # Few rows have a cell to empty.
        at = pc.indices_nonzero(here)
        if not len(at):
            continue
        rooms = batch.column(rule.within).take(at).to_pylist()
        events = batch.column(rule.target).take(at).to_pylist()
        redacted = erasures.redacted
        hits = [
            row
            for row, room, event in zip(at.to_pylist(), rooms, events, strict=True)
            if (room or "", event) in redacted or ("", event) in redacted
        ]
        if hits:
            rows = np.zeros(batch.num_rows, bool)
            rows[hits] = True
            found.update(dict.fromkeys(rule.cleared, pa.array(rows)))
    return found


def _nulled(column: Any, gone: Any) -> Any:
    if not pc.any(gone).as_py():
        return column
    return pc.if_else(gone, pa.scalar(None, column.type), column)


def _replaced(batch: pa.RecordBatch, columns: dict[int, Any]) -> pa.RecordBatch:
    fields = [
        field.with_nullable(True) if at in columns else field
        for at, field in enumerate(batch.schema)
    ]
    cells: list[Any] = [columns.get(at, column) for at, column in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(cells, schema=pa.schema(fields))
