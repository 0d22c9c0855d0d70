"""Charts as SVG. Axes of numbers begin at 0, and what is not shown is said."""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from datetime import date
from html import escape
from typing import NamedTuple

#: Maximum number of bars, or of rows of spans, in a chart.
MAX_ROWS = 25

#: Maximum number of spans in a row; further ones are said to be left out.
MAX_SPANS = 2_000

_WIDTH, _LEFT, _RIGHT = 960, 260, 110
_PLOT = _WIDTH - _LEFT - _RIGHT
_LABEL = 30


class Bar(NamedTuple):
    """A row of a bar chart.

    :ivar value: shown as the full bar
    :ivar before: shown as a paler bar behind it, if any
    """

    name: str
    value: float
    before: float | None = None


class Point(NamedTuple):
    """A point of a line.

    :ivar low: of a forecast, the lower bound; otherwise None
    """

    day: date
    value: float
    low: float | None = None
    high: float | None = None


class ChartSpan(NamedTuple):
    """An interval in a row of a chart.

    :ivar kind: what is true in it; its colour
    """

    name: str
    first: int
    last: int
    kind: str


def bars(rows: Sequence[Bar], unit: str, count: int | None = None) -> str:
    """Horizontal bars, in the order given.

    :param unit: what the numbers are
    :param count: the number of rows there are, if not all are given
    """
    shown = rows[:MAX_ROWS]
    if not shown:
        return _nothing()
    greatest = max(max(bar.value, bar.before or 0.0) for bar in shown)
    top, ticks = _ticks(greatest)
    height = 26 * len(shown)
    parts = [_vertical_axis(ticks, top, height, unit)]
    for nth, bar in enumerate(shown):
        y = 26 * nth
        parts.append(_name(bar.name, y + 16))
        for value, name in ((bar.before, "before"), (bar.value, "bar")):
            if value is not None:
                width = _PLOT * value / top
                parts.append(
                    f'<rect class="{name}" x="{_LEFT}" y="{y + 4}" width="{width:.1f}" height="17"/>'
                )
        end = _LEFT + _PLOT * max(bar.value, bar.before or 0.0) / top + 5
        text = short_number(bar.value)
        if bar.before is not None:
            text += f" of {short_number(bar.before)}"
        parts.append(f'<text x="{end:.1f}" y="{y + 17}" class="small">{text}</text>')
    return _svg(parts, height + 46, f"bar chart of {unit}") + _rows_left_out(rows, shown, count)


def line(points: Sequence[Point], unit: str) -> str:
    """A line over days; where there are bounds, dashed and with a band."""
    if not points:
        return _nothing()
    first, last = points[0].day.toordinal(), points[-1].day.toordinal()
    greatest = max(max(point.value, point.high or 0.0) for point in points)
    top, ticks = _ticks(greatest)
    height = 200

    def x(day: date) -> float:
        return 70 + (_WIDTH - 90) * (day.toordinal() - first) / max(1, last - first)

    def y(value: float) -> float:
        return 12 + height * (1 - value / top)

    parts = []
    for tick in ticks:
        parts.append(
            f'<line class="grid" x1="70" x2="{_WIDTH - 20}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
            f'<text class="small end" x="64" y="{y(tick) + 4:.1f}">{short_number(tick)}</text>'
        )
    days = sorted({first + round((last - first) * part / 6) for part in range(7)})
    for ordinal in days:
        day = date.fromordinal(ordinal)
        anchor = "end" if ordinal == last > first else "middle"
        parts.append(
            f'<text class="small {anchor}" x="{x(day):.1f}" y="{height + 32}">{day.isoformat()}</text>'
        )
    known = [point for point in points if point.low is None]
    ahead = [point for point in points if point.low is not None]
    if ahead:
        band = [(x(p.day), y(p.high or 0.0)) for p in ahead]
        band += [(x(p.day), y(p.low or 0.0)) for p in reversed(ahead)]
        if known:
            band.insert(0, (x(known[-1].day), y(known[-1].value)))
        parts.append(f'<polygon class="band" points="{_points(band)}"/>')
        path = [(x(p.day), y(p.value)) for p in (known[-1:] + ahead)]
        parts.append(f'<polyline class="ahead" points="{_points(path)}"/>')
    path = [(x(p.day), y(p.value)) for p in known]
    parts.append(f'<polyline class="line" points="{_points(path)}"/>')
    if len(known) == 1:
        parts.append(f'<circle class="dot" cx="{path[0][0]:.1f}" cy="{path[0][1]:.1f}" r="4"/>')
    return _svg(parts, height + 42, f"line of {unit}")


def spans(rows: Sequence[ChartSpan], unit: str, count: int | None = None) -> str:
    """Intervals along a common axis, a row for each name, in the order of the names' first intervals.

    :param unit: what the axis counts
    :param count: the number of names there are, if not the intervals of all are given
    """
    names = list(dict.fromkeys(span.name for span in rows))
    shown = {name: nth for nth, name in enumerate(names[:MAX_ROWS])}
    if not shown:
        return _nothing()
    within = [span for span in rows if span.name in shown]
    first = min(span.first for span in within)
    extent = max(1, max(span.last for span in within) - first + 1)
    kinds = {kind: nth for nth, kind in enumerate(sorted({span.kind for span in rows}))}
    height = 24 * len(shown)
    parts = [_name(name, 24 * nth + 16) for name, nth in shown.items()]
    drawn = dict.fromkeys(shown, 0)
    left_out = 0
    plot = _PLOT + _RIGHT - 10
    for span in within:
        drawn[span.name] += 1
        if drawn[span.name] > MAX_SPANS:
            left_out += 1
            continue
        x = _LEFT + plot * (span.first - first) / extent
        width = max(0.5, plot * (span.last - span.first + 1) / extent)
        parts.append(
            f'<rect class="kind{kinds[span.kind] % 4}" x="{x:.1f}" y="{24 * shown[span.name] + 3}"'
            f' width="{width:.1f}" height="17"><title>{escape(span.kind)}: {span.first:,} to'
            f" {span.last:,}</title></rect>"
        )
    for part in range(5):
        at = first + round((extent - 1) * part / 4)
        x = _LEFT + plot * (at - first) / extent
        anchor = "end" if part == 4 else "middle" if part else ""
        parts.append(f'<text class="small {anchor}" x="{x:.1f}" y="{height + 18}">{at:,}</text>')
    parts.append(
        f'<text class="small middle" x="{_LEFT + plot / 2}" y="{height + 36}">{escape(unit)}</text>'
    )
    legend = "".join(
        f'<span class="key"><i class="kind{nth % 4}"></i>{escape(kind)}</span>'
        for kind, nth in kinds.items()
    )
    notes = _rows_left_out(names, shown, count) + _left_out(left_out, "interval")
    return f"<p>{legend}</p>" + _svg(parts, height + 44, f"intervals of {unit}") + notes


def short_number(value: float) -> str:
    """A number in a few characters."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g} {unit}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.3g}"


def clean(text: str, most: int = _LABEL) -> str:
    """Text for a label: without what is not printable, and not longer than that; escaped."""
    printable = "".join(each if each.isprintable() else "\ufffd" for each in text)
    return escape(printable if len(printable) <= most else printable[: most - 1] + "…")


def _ticks(greatest: float) -> tuple[float, list[float]]:
    """The end of an axis from 0, and round numbers on it."""
    if greatest <= 0:
        return 1.0, [0.0, 1.0]
    size = 10.0 ** math.floor(math.log10(greatest / 4))
    step = next(size * each for each in (1, 2, 2.5, 5, 10) if size * each * 5 >= greatest)
    if greatest >= 1:
        step = max(1.0, math.ceil(step))
    count = math.ceil(greatest / step)
    return step * count, [step * nth for nth in range(count + 1)]


def _vertical_axis(ticks: Sequence[float], top: float, height: int, unit: str) -> str:
    parts = []
    for tick in ticks:
        x = _LEFT + _PLOT * tick / top
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>'
            f'<text class="small middle" x="{x:.1f}" y="{height + 16}">{short_number(tick)}</text>'
        )
    middle = _LEFT + _PLOT / 2
    parts.append(f'<text class="small middle" x="{middle}" y="{height + 36}">{escape(unit)}</text>')
    return "".join(parts)


def _name(name: str, y: int) -> str:
    return (
        f'<text class="end" x="{_LEFT - 8}" y="{y}">{clean(name)}<title>{clean(name, 300)}</title>'
        "</text>"
    )


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _svg(parts: Sequence[str], height: int, what: str) -> str:
    return (
        f'<svg role="img" aria-label="{escape(what)}" viewBox="0 0 {_WIDTH} {height}">'
        f"{''.join(parts)}</svg>"
    )


def _rows_left_out(given: Sized, shown: Sized, count: int | None) -> str:
    return _left_out((len(given) if count is None else count) - len(shown), "smaller one")


def _left_out(count: int, what: str) -> str:
    if count <= 0:
        return ""
    words = f"{what} is" if count == 1 else f"{what}s are"
    return f'<p class="note">{count:,} {words} not shown.</p>'


def _nothing() -> str:
    return '<p class="note">There is nothing to show.</p>'
