"""A stream's tokens in ranges that have about one number of rows each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synrepl.core.tokens import Range, Token
from synrepl.pipeline.lake.data_files import DataFile


@dataclass(frozen=True, slots=True)
class TokenRanges:
    """TokenRanges that follow one another, from the lowest up.

    :ivar after: the first one is above it
    :ivar ends: the last token of each
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
        """Cut a range of tokens by how many rows a table's files have where.

        Within a file they are taken to be spread evenly, so the numbers are about right only.

        :param whole: not empty
        :param rows: of each range
        :param gaps: tokens that no row has, in order
        """
        # How many rows begin and end to be at each token; summed up twice, how many there are.
        edges: dict[Token, float] = {whole.after: 0.0, whole.upto: 0.0}
        for file in files:
            low, high = (-file.high, -file.low) if counts_down else (file.low, file.high)
            spans = _without(gaps, Range(low - 1, high))
            density = file.rows / sum(upto - after for after, upto in spans)
            for after, upto in spans:
                edges[after] = edges.get(after, 0.0) + density
                edges[upto] = edges.get(upto, 0.0) - density
        tokens = sorted(edges)
        # Counted from the first one: a double has 53 bits, a token 63.
        at = np.array([token - tokens[0] for token in tokens], dtype=np.float64)
        per_token = np.cumsum([edges[token] for token in tokens])
        more = np.maximum(per_token[:-1] * np.diff(at), 0.0)  # what rounding leaves may be below
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
        """The range of that number."""
        return Range(self.ends[number - 1] if number else self.after, self.ends[number])

    def numbers(self, tokens: Any) -> Any:
        """In which range each of an array of tokens is; the last one has all that are above it, too."""
        return np.searchsorted(np.array(self.ends[:-1], dtype=np.int64), tokens, side="left")


def _without(gaps: Iterable[Range], span: Range) -> list[Range]:
    """What is left of a range; all of it, if that would be nothing."""
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
    """TokenRanges in order, those that touch as one."""
    found: list[Range] = []
    for span in spans:
        if found and found[-1].upto >= span.after:
            found[-1] = Range(found[-1].after, max(span.upto, found[-1].upto))
        else:
            found.append(span)
    return found
