"""Pictures of answers, as PNG files."""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synrepl.core.errors import ConfigError, InputError, StorageError
from synrepl.pipeline.jobs.job import Job, Kind, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: So many series are told apart in one picture: there are as many colours.
LINES = 10
ROWS = 25

#: So many times are told apart in a heat map.
CELLS = 2000

_HOUR = timedelta(hours=1)

_INCHES = (12.0, 6.5)
_DPI = 120
_LABEL = 48

#: By series and time; bars have one time, which is None.
Points = dict[str, dict[Any, float]]


class PlottingMissing(ConfigError):
    """matplotlib is not installed, which draws pictures: run pip install matplotlib"""


class NothingToPlot(InputError):
    """job {job!r} gave nothing that can be drawn: {reason}"""


class PictureNotWritten(StorageError):
    """the picture {path} cannot be written: {reason}"""


def plot(job: Job, rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Draw an answer as the job says.

    :param rows: all of it, each by column (:meth:`pyspark.sql.Row.asDict`)
    :param path: of the PNG file, which is written over
    :raises PlottingMissing: :raises NothingToPlot: :raises PictureNotWritten:
    """
    drawn = picture(job, rows)
    draft = path.parent / f".{path.name}.{os.getpid()}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of letters that the font has not
            drawn.savefig(draft, format="png")
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise PictureNotWritten(path=path, reason=error.strerror or error) from None


def picture(job: Job, rows: Iterable[Mapping[str, Any]]) -> Figure:
    """What :func:`plot` writes."""
    if find_spec("matplotlib") is None:
        raise PlottingMissing
    # Takes most of a second, and few want pictures.
    from matplotlib.figure import Figure

    all_points, undated = _points(job.plot, rows)
    points, left_out = _largest(all_points, LINES if job.plot.kind is Kind.LINES else ROWS)
    if not points:
        reason = "none of its rows has a known time" if undated else "it has no rows with numbers"
        raise NothingToPlot(job=job.name, reason=reason)
    notes = [f"{left_out:,} smaller series are not shown"] if left_out else []
    if undated:
        notes.append(f"{undated:,} lines of the answer have no known time and are not shown")
    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    draw = {Kind.LINES: _lines, Kind.HEAT: _heat, Kind.BARS: _bars}[job.plot.kind]
    notes += draw(figure, axes, job.plot, points)
    figure.suptitle(job.title, fontsize=14)
    axes.set_title("; ".join(notes), fontsize=9, color="dimgray")
    return figure


def _points(drawn: Plot, rows: Iterable[Mapping[str, Any]]) -> tuple[Points, int]:
    """The numbers to draw, and how many rows have no time."""
    found: Points = defaultdict(dict)
    undated = 0
    for row in rows:
        number = row[drawn.y]
        at = _moment(row[drawn.x]) if drawn.x else None
        if drawn.x and at is None:
            undated += 1
        elif number is not None:
            of = found[", ".join(str(row[column]) for column in drawn.series)]
            if at not in of:
                of[at] = number
            else:
                of[at] = of[at] + number if drawn.add else max(of[at], number)
    return found, undated


def _largest(points: Points, most: int) -> tuple[Points, int]:
    """The series with the largest numbers, those first; how many are left out."""
    by_size = sorted(points, key=lambda name: (-max(points[name].values()), name))
    return {name: points[name] for name in by_size[:most]}, len(by_size[most:])


def _moment(value: date | datetime | None) -> datetime | None:
    """A time in UTC; Spark gives naive ones in the zone of this process."""
    if value is None or isinstance(value, datetime):
        return None if value is None else value.astimezone(UTC)
    return datetime(value.year, value.month, value.day, tzinfo=UTC)


def _label(name: str) -> str:
    """A name as text that is drawn as it is: before matplotlib 3.10, a leading underscore hides a line."""
    clean = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name
    )
    short = clean if len(clean) <= _LABEL else clean[: _LABEL - 1] + "…"
    return f" {short}"


def _lines(figure: Figure, axes: Axes, drawn: Plot, points: Points) -> list[str]:
    lines = []
    for name, line in points.items():
        times = sorted(line)
        lines += axes.plot(
            times, [line[at] for at in times], marker="o", markersize=3.5, label=_label(name)
        )
    if drawn.log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=min(0.0, *(min(line.values()) for line in points.values())))
    times = sorted({at for line in points.values() for at in line})
    if len(times) == 1:  # else it is shown between years
        axes.set_xlim(times[0] - timedelta(hours=36), times[0] + timedelta(hours=36))
    _plain_numbers(axes.yaxis)
    _dates(axes)
    axes.set_ylabel(drawn.label)
    axes.grid(alpha=0.3)
    legend = figure.legend(
        handles=lines, loc="outside right upper", title=", ".join(drawn.series), fontsize=8
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    return ["times are UTC"]


def _heat(figure: Figure, axes: Axes, drawn: Plot, points: Points) -> list[str]:
    from matplotlib.colors import LogNorm, Normalize

    times = sorted({at for line in points.values() for at in line})
    hours = (times[-1] - times[0]) // _HOUR + 1
    step = -(-hours // CELLS)  # one lying clock must not make it millions of cells
    width = -(-hours // step)
    grid = [[float("nan")] * width for _ in points]
    for cells, line in zip(grid, points.values(), strict=True):
        for at in sorted(line):
            place = (at - times[0]) // (_HOUR * step)
            cells[place] = max(line[at], cells[place])  # in this order, which gets rid of the NaN
    edges = [times[0] + _HOUR * step * place for place in range(width + 1)]
    greatest = max(2.0, *(max(line.values()) for line in points.values()))
    colours = LogNorm(1, greatest) if drawn.log else Normalize(0, greatest)
    mesh = axes.pcolormesh(edges, range(len(points) + 1), grid, cmap="viridis", norm=colours)  # type: ignore[arg-type,unused-ignore]
    axes.invert_yaxis()
    _names(axes, [place + 0.5 for place in range(len(points))], list(points))
    _dates(axes)
    bar = figure.colorbar(mesh, ax=axes, label=drawn.label)
    _plain_numbers(bar.ax.yaxis)
    return ["times are UTC", *([f"of each {step:,} hours the greatest"] if step > 1 else [])]


def _bars(figure: Figure, axes: Axes, drawn: Plot, points: Points) -> list[str]:
    values = [next(iter(line.values())) for line in points.values()]
    bars = axes.barh(range(len(values)), values)
    axes.bar_label(bars, fmt="{:,.3g}", padding=3, fontsize=8)
    axes.invert_yaxis()
    _names(axes, list(range(len(values))), list(points))
    axes.set_xlabel(drawn.label)
    axes.margins(x=0.1)
    axes.grid(axis="x", alpha=0.3)
    return []


def _names(axes: Axes, places: Sequence[float], names: Sequence[str]) -> None:
    axes.set_yticks(places, [_label(name) for name in names], fontsize=8)
    for text in axes.get_yticklabels():
        text.set_parse_math(False)


def _plain_numbers(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.10g}"))


def _dates(axes: Axes) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(tz=UTC, minticks=3)  # type: ignore[no-untyped-call,unused-ignore]
    axes.xaxis_date(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call,unused-ignore]
    axes.xaxis.set_major_formatter(formatter)
