"""Finding whole texts in cells, also as strings within JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: Up to so many texts a cell is searched for each of them before it is taken apart.
_FEW = 4

#: A string within JSON. By pattern, not by a decoder: of two members of one name that would
#: show the last one alone, and the file holds both.
_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)

_LIKE_JSON = r'^\s*[\[{"]'


class TextSearch:
    """Some texts, looked for in columns."""

    def __init__(self, texts: frozenset[str]) -> None:
        self._texts = texts
        self._array = pa.array(sorted(texts), pa.string())

    def equal(self, column: pa.Array) -> pa.Array:
        """Where a cell is one of them."""
        if len(self._texts) <= len(column):
            return pc.is_in(column, value_set=self._array)
        # Arrow would make a table of them for each batch.
        texts = self._texts
        return pa.array([cell in texts for cell in column.to_pylist()], pa.bool_())

    def within(self, column: pa.Array) -> pa.Array:
        """Where a cell is JSON that has one of them as a string, a member's name or a value.

        Text that holds JSON in turn is looked into.
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
        """Where a cell has one of them as a part of it, however it is written down."""
        return pa.array([self._is_part_of(cell) for cell in column.to_pylist()], pa.bool_())

    def _suspects(self, cells: pa.Array) -> pa.Array:
        """Where cells may have one of them; without taking them apart."""
        # Written with escapes it may look like anything.
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
    """The strings within JSON text, members' names and values alike, and those within them."""
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
