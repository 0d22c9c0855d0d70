"""Searches columns for texts, also as strings within JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
