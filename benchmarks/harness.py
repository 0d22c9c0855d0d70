"""Repetitions, ratios, bounds, and rows that a person can read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import process_time
from typing import NamedTuple


class Bound(NamedTuple):
    """What a figure must keep to.

    :ivar at_least: True when more is better
    """

    limit: float
    at_least: bool

    def holds(self, figure: float) -> bool:
        """True when ``figure`` keeps to it."""
        return figure >= self.limit if self.at_least else figure <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


def at_least(limit: float) -> Bound:
    """More is better."""
    return Bound(limit, True)


def at_most(limit: float) -> Bound:
    """Less is better."""
    return Bound(limit, False)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the outcome.

    :ivar name: what was measured
    :ivar figure: what is judged: a ratio, or a number of ``unit``
    :ivar spread: smallest and largest figure of the repetitions
    :ivar detail: both sides of the ratio and the like, for a person
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
        """``PASS``, ``MISS``, or nothing without a bound."""
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
    """How much work a run does.

    :ivar factor: of the full run's work
    :ivar repetitions: of each side of a ratio
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
    """Call the sides in turn, so that a machine that changes its pace changes it for all.

    A first round warms up and is thrown away.
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
    """Ours over the other's, as the median of the pairs that were measured next to each other.

    :param of: what the other is
    :param measured_in: the unit of both, for a person
    :param scale: of both figures, for a person (1e6 for microseconds)
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
    """Three digits that matter, thousands apart."""
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
