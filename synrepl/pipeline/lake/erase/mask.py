"""Masks rows: empties the cells that contain an erased subject or event."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.lake.erase.erasures import Erasures, rules_for
from synrepl.pipeline.lake.erase.redacted_events import AppliedRedactions
from synrepl.pipeline.source.database.stream_schema import HEAD, StreamSchema
from synrepl.pipeline.source.database.whole_events import has_whole_events
from synrepl.pipeline.source.reading.event_form import shown_text
from synrepl.streams.columns import Column, ColumnType

#: Maximum number of texts for which cells are searched before they are parsed.
_FEW = 4

#: A string within JSON. Not by a decoder, which returns only the last of two members with the same
#: name, while the file contains both.
_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)

_LIKE_JSON = r'^\s*[\[{"]'


class TextSearch:
    """Searches columns for a set of texts."""

    def __init__(self, texts: frozenset[str]) -> None:
        self._texts = texts
        self._array = pa.array(sorted(texts), pa.string())

    def equal(self, column: pa.Array) -> pa.Array:
        """Which cells equal one of the texts."""
        if len(self._texts) <= len(column):
            return pc.is_in(column, value_set=self._array)
        # Arrow would build a hash table of them for each batch.
        texts = self._texts
        return pa.array([cell in texts for cell in column.to_pylist()], pa.bool_())

    def within(self, column: pa.Array) -> pa.Array:
        """Which cells are JSON with one of the texts as a string: as a member's name or a value.

        Strings that contain JSON themselves are searched, too.
        """
        like_json = pc.fill_null(pc.match_substring_regex(column, _LIKE_JSON), False)
        rows = pc.indices_nonzero(like_json)
        if len(rows) and len(self._texts) <= _FEW:
            rows = rows.filter(self._suspects(column.take(rows)))
        cells = zip(rows.to_pylist(), column.take(rows).to_pylist(), strict=True)
        hits = [row for row, cell in cells if not self._texts.isdisjoint(strings(cell))]
        found = np.zeros(len(column), bool)
        found[hits] = True
        return pa.array(found)

    def anywhere(self, column: pa.Array) -> pa.Array:
        """Which cells contain one of the texts, in any spelling."""
        return pa.array([self._is_part_of(cell) for cell in column.to_pylist()], pa.bool_())

    def _suspects(self, cells: pa.Array) -> pa.Array:
        """Which cells may contain one of the texts, without parsing them."""
        # With escapes, a text can be spelled in many ways.
        found = pc.match_substring(cells, "\\")
        for text in self._texts:
            quoted = msgspec.json.encode(text).decode()
            found = pc.or_(found, pc.match_substring(cells, quoted))
        return found

    def _is_part_of(self, cell: str | None) -> bool:
        if cell is None:
            return False
        spellings = [cell, *(each for each in strings(cell) if each not in cell)]
        return any(text in each for text in self._texts for each in spellings)


def strings(cell: str) -> Iterator[str]:
    """The strings within JSON text, names and values of members, and strings nested in them."""
    for literal in _STRING.findall(cell):
        if "\\" not in literal:
            yield literal
            continue
        try:
            text = json.loads(f'"{literal}"', strict=False)
        except ValueError:
            text = literal
        yield text
        if '"' in text:
            yield from strings(text)


_HEADS = frozenset(column.name for column in HEAD)


def mask(batch: pa.RecordBatch, stream_schema: StreamSchema, erasures: Erasures) -> pa.RecordBatch:
    """Empty the cells of rows that contain an erased subject or event.

    - A text that equals a subject becomes null, and so does such an element of ``text[]``.
    - JSON with a subject among its strings, in a JSON or text column, becomes null as a whole.
    - In rows of redacted events, the columns listed in :data:`.RULES` become null.
    - Whole events to which a redaction applies get their redacted form.
    - Of a whole event, the reason of a rejection becomes null if it mentions a subject.

    Stream ID, row number and writer stay. Masking is idempotent.

    :param batch: some or all of the stream's columns. A column becomes nullable if one of its cells
        is emptied; in a lake's tables they all are
    :returns: the same object if there was nothing to empty
    """
    if not erasures or not batch.num_rows:
        return batch
    if erasures.applied and has_whole_events(stream_schema):
        batch = _in_redacted_form(batch, erasures.applied)
    emptied = _redacted(batch, stream_schema, erasures)
    texts = _texts(erasures.subjects) if erasures.subjects else None
    columns: dict[int, Any] = {}
    for at, field in enumerate(batch.schema):
        if field.name in _HEADS:
            continue
        column = found = batch.column(at)
        if texts is not None:
            found = _without(texts, column)
            if field.name == "refusal" and has_whole_events(stream_schema):
                found = _nulled(found, texts.anywhere(found))
        if field.name in emptied:
            found = _nulled(found, emptied[field.name])
        if found is not column:
            columns[at] = found
    if not columns:
        return batch
    return _replaced(batch, columns)


def searched_columns(stream_schema: StreamSchema, erasures: Erasures) -> list[Column]:
    """The columns that tell whether :func:`mask` has anything to empty in a row; none if it never has."""
    wanted: set[str] = set()
    if erasures.subjects:
        # Numbers are never erased.
        texts = (ColumnType.TEXT, ColumnType.JSON, ColumnType.TEXT_ARRAY)
        wanted.update(cell.name for cell in stream_schema.cells if cell.type in texts)
    if erasures.redacted:
        for rule in rules_for(stream_schema):
            wanted.update(
                (rule.target, rule.within, *rule.cleared, *(("kind",) if rule.kind else ()))
            )
    if erasures.applied and has_whole_events(stream_schema):
        wanted.update(("room_id", "event_id", "redacted"))
    return [cell for cell in stream_schema.cells if cell.name in wanted]


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
        hits = erasures.redacted.contain(rooms, events)
        if hits.any():
            rows = np.zeros(batch.num_rows, bool)
            rows[at.to_numpy()[hits]] = True
            found.update(dict.fromkeys(rule.cleared, pa.array(rows)))
    return found


def _in_redacted_form(batch: pa.RecordBatch, applied: AppliedRedactions) -> pa.RecordBatch:
    """A batch of whole events with the redacted form of those to which a redaction applies.

    :param batch: at least their rooms, IDs and whether they are redacted
    :returns: the same object if all of them had that form
    """
    names = batch.schema.names
    # Few events are redacted, and null means that there was no event to redact.
    at = pc.indices_nonzero(pc.fill_null(pc.invert(batch.column("redacted")), False))
    rooms = batch.column("room_id").take(at).to_pylist()
    events = batch.column("event_id").take(at).to_pylist()
    # A room ID that has been erased itself is no longer known.
    hits = at.to_numpy()[applied.contain(rooms, events)].tolist()
    if not hits:
        return batch
    changed: dict[int, Any] = {}
    redacted: list[Any] = batch.column("redacted").to_pylist()
    for row in hits:
        redacted[row] = True
    changed[names.index("redacted")] = pa.array(redacted, pa.bool_())
    if "json" in names:
        texts: list[Any] = batch.column("json").to_pylist()
        versions = batch.column("room_version")
        for row in hits:
            texts[row] = shown_text(texts[row], versions[row].as_py())
        changed[names.index("json")] = pa.array(texts, pa.string())
    return _replaced(batch, changed)


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
