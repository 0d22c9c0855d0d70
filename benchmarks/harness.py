"""Repetitions, ratios, bounds, and the rows of the output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import process_time
from typing import NamedTuple


class Bound(NamedTuple):
    """The bound of a figure.

    :ivar at_least: whether the figure must not be below the limit; otherwise it must not be above
    """

    limit: float
    at_least: bool

    def holds(self, figure: float) -> bool:
        """Whether ``figure`` is within the bound."""
        return figure >= self.limit if self.at_least else figure <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


def at_least(limit: float) -> Bound:
    """A lower bound."""
    return Bound(limit, True)


def at_most(limit: float) -> Bound:
    """An upper bound."""
    return Bound(limit, False)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the results.

    :ivar name: what was measured
    :ivar figure: a ratio, or a number of ``unit``
    :ivar spread: smallest and largest figure of the repetitions
    :ivar detail: both sides of the ratio, and other details, as text
    """

    name: str
    figure: float
    unit: str
    bound: Bound | None = None
    spread: tuple[float, float] | None = None
    detail: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """``PASS`` or ``MISS``; empty without a bound."""
        if self.bound is None:
            return ""
        return "PASS" if self.bound.holds(self.figure) else "MISS"

    def to_json(self) -> dict[str, object]:
        """For ``--json``."""
        fields: dict[str, object] = {"name": self.name, "figure": self.figure, "unit": self.unit}
        if self.bound is not None:
            fields |= {"bound": str(self.bound), "verdict": self.verdict}
        if self.spread is not None:
            fields["spread"] = list(self.spread)
        return {**fields, **self.numbers}


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of work of a run.

    :ivar factor: relative to a full run
    :ivar repetitions: measurements of each side of a ratio
    """

    factor: float
    repetitions: int

    def of(self, amount: int) -> int:
        """``amount`` of a full run, scaled."""
        return max(1, int(amount * self.factor))


FULL = Scale(1.0, 7)
QUICK = Scale(0.2, 3)


def interleaved(
    sides: Mapping[str, Callable[[], float]], repetitions: int
) -> dict[str, list[float]]:
    """Measure the sides in turn, so that changes of the machine's speed affect all of them.

    The first round is a warm-up and is discarded.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    for nth in range(repetitions + 1):
        for name, measure in sides.items():
            figure = measure()
            if nth:
                found[name].append(figure)
    return found


def ratio(
    name: str,
    ours: Sequence[float],
    other: Sequence[float],
    *,
    of: str,
    measured_in: str,
    bound: Bound | None,
    scale: float = 1.0,
) -> Row:
    """The ratio of ours to the other, as the median over pairs of adjacent measurements.

    :param of: the name of the other side
    :param measured_in: the unit of both, for display
    :param scale: the factor of both, for display (1e6 for microseconds)
    """
    ratios = [one / two for one, two in zip(ours, other, strict=True)]
    here, there = median(ours) * scale, median(other) * scale
    return Row(
        name,
        median(ratios),
        f"× {of}",
        bound,
        (min(ratios), max(ratios)),
        f"{shown(here)} against {shown(there)} {measured_in}",
        {"ours": here, "other": there},
    )


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of this process that ``work`` takes."""
    before = process_time()
    work()
    return process_time() - before


def shown(number: float) -> str:
    """A number with three significant digits and thousands separators."""
    if abs(number) >= 1000:
        return f"{float(f'{number:.3g}'):,.0f}"
    return f"{number:.3g}"


def table(rows: Iterable[Row]) -> str:
    """Rows as Markdown."""
    lines = ["| measured | figure | bound | | spread | |", "|---|---:|---|---|---|---|"]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join(lines)


def cells(row: Row) -> tuple[str, ...]:
    """A row's cells, as text."""
    spread = f"{shown(row.spread[0])} … {shown(row.spread[1])}" if row.spread else ""
    bound = str(row.bound) if row.bound else ""
    return row.name, f"{shown(row.figure)} {row.unit}", bound, row.verdict, spread, row.detail
