"""Divides a stream's tokens into ranges with about the same number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synrepl.core.tokens import Range, Token
from synrepl.pipeline.lake.data_files import DataFile


@dataclass(frozen=True, slots=True)
class TokenRanges:
    """Adjacent ranges of tokens, in ascending order.

    :ivar after: the first range is above it
    :ivar ends: the last token of each range
    """

    after: Token
    ends: tuple[Token, ...]

    @classmethod
    def of_files(
        cls,
        files: Iterable[DataFile],
        counts_down: bool,
        whole: Range,
        rows: int,
        gaps: Sequence[Range] = (),
    ) -> TokenRanges:
        """Cut a range of tokens by the distribution of rows over a table's files.

        Rows are assumed to be spread evenly within a file, so the numbers are approximate.

        :param whole: the range to cut; not empty
        :param rows: the number of rows per range
        :param gaps: tokens without rows, in order
        """
        # Changes of the row density at each token. Their running sum is the density, and its running sum
        # the number of rows.
        edges: dict[Token, float] = {whole.after: 0.0, whole.upto: 0.0}
        for file in files:
            low, high = (-file.high, -file.low) if counts_down else (file.low, file.high)
            spans = _without(gaps, Range(low - 1, high))
            density = file.rows / sum(upto - after for after, upto in spans)
            for after, upto in spans:
                edges[after] = edges.get(after, 0.0) + density
                edges[upto] = edges.get(upto, 0.0) - density
        tokens = sorted(edges)
        # Relative to the first token: a double has 53 bits, a token 63.
        at = np.array([token - tokens[0] for token in tokens], dtype=np.float64)
        per_token = np.cumsum([edges[token] for token in tokens])
        more = np.maximum(per_token[:-1] * np.diff(at), 0.0)  # rounding may leave it below 0
        before = np.concatenate(([0.0], np.cumsum(more)))
        first, last = (
            float(np.interp(token - tokens[0], at, before)) for token in (whole.after, whole.upto)
        )
        wanted = np.arange(1, int((last - first) // rows) + 1) * float(rows) + first
        found = {round(each) + tokens[0] for each in np.interp(wanted, before, at)}
        inside = sorted(token for token in found if whole.after < token < whole.upto)
        return cls(whole.after, (*inside, whole.upto))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> Range:
        """The range with this number."""
        return Range(self.ends[number - 1] if number else self.after, self.ends[number])

    def numbers(self, tokens: Any) -> Any:
        """The number of the range of each token; tokens above the last range belong to it, too."""
        return np.searchsorted(np.array(self.ends[:-1], dtype=np.int64), tokens, side="left")


def _without(gaps: Iterable[Range], span: Range) -> list[Range]:
    """The range without the gaps; all of it if nothing would be left."""
    left = [span]
    for gap in gaps:
        left = [
            part
            for each in left
            for part in (
                Range(each.after, min(each.upto, max(each.after, gap.after))),
                Range(max(each.after, min(each.upto, gap.upto)), each.upto),
            )
            if not part.empty
        ]
    return left or [span]


def merge_adjacent(spans: Iterable[Range]) -> list[Range]:
    """Merge adjacent ranges; they have to be in order."""
    found: list[Range] = []
    for span in spans:
        if found and found[-1].upto >= span.after:
            found[-1] = Range(found[-1].after, max(span.upto, found[-1].upto))
        else:
            found.append(span)
    return found
