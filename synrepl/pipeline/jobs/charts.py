"""Draws a job's result as a PNG chart."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from synrepl.core.errors import ConfigError, StorageError
from synrepl.pipeline.jobs.job import LakeJob, Plot, PlotKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Maximum number of series in a chart of each kind.
MAX_SERIES = {PlotKind.LINES: 10, PlotKind.HEAT: 25, PlotKind.BARS: 25}

#: Maximum number of columns of a heat map.
MAX_COLUMNS = 2000

_HOUR = timedelta(hours=1)
_NUMBERS = "{x:,.10g}"
_LABEL = 48

#: Names are shown as they are, and times in UTC.
_STYLE: dict[Any, Any] = {"text.parse_math": False, "date.converter": "concise", "timezone": "UTC"}


class PlottingMissing(ConfigError):
    """matplotlib is not installed, which draws pictures: run pip install matplotlib"""


class PictureNotWritten(StorageError):
    """the picture {path} cannot be written: {reason}"""


def write_chart(job: LakeJob, rows: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Draw the chart that :attr:`.LakeJob.plot` describes.

    If there is nothing to draw, the picture says so, and why: an older one would look like the result.

    :param rows: all rows of the result, each by column (:meth:`pyspark.sql.Row.asDict`)
    :param path: the PNG file, overwritten if it exists
    :returns: why there is nothing to draw; "" if there is something
    :raises PlottingMissing: :raises PictureNotWritten:
    """
    drawn, nothing = draw_chart(job, rows)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the font lacks a letter
            drawn.savefig(path, format="png")
    except OSError as error:
        raise PictureNotWritten(path=path, reason=error.strerror or error) from None
    return nothing


def draw_chart(job: LakeJob, rows: Sequence[Mapping[str, Any]]) -> tuple[Figure, str]:
    """The figure that :func:`write_chart` writes, and what it returns."""
    if find_spec("matplotlib") is None:
        raise PlottingMissing
    # The import takes most of a second.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    table, undated, unnumbered = _table(job.plot, rows)
    most = MAX_SERIES[job.plot.kind]
    notes = []
    if table.shape[1] > most:
        notes.append(f"smaller series that are not shown: {table.shape[1] - most:,}")
    if undated:
        notes.append(f"lines that are not shown, as they have no known time: {undated:,}")
    if unnumbered:
        notes.append(f"lines that are not shown, as they have no number: {unnumbered:,}")
    nothing = _why_empty(rows, undated) if table.empty else ""
    with rc_context(_STYLE):
        figure = Figure(figsize=(12.0, 6.5), dpi=120, layout="constrained")
        figure.suptitle(job.title, fontsize=14)
        if nothing:
            figure.text(0.5, 0.5, f"Nothing to draw: {nothing}.", ha="center", color="dimgray")
            return figure, nothing
        axes = figure.add_subplot()
        draw = {PlotKind.LINES: _lines, PlotKind.HEAT: _heat, PlotKind.BARS: _bars}[job.plot.kind]
        notes += draw(figure, axes, job.plot, table.iloc[:, :most])
        axes.set_title("; ".join(notes), fontsize=9, color="dimgray")
    return figure, ""


def _why_empty(rows: Sequence[Mapping[str, Any]], undated: int) -> str:
    if not rows:
        return "the result has no rows"
    if undated == len(rows):
        return "no row of the result has a known time"
    return "no row of the result has both a known time and a number"


def _table(drawn: Plot, rows: Sequence[Mapping[str, Any]]) -> tuple[pd.DataFrame, int, int]:
    """Numbers by time and series, the largest series first.

    Also the number of rows without a time, and of others without a number.
    """
    cells = [
        (
            _utc(row[drawn.x]) if drawn.x else 0,
            ", ".join(str(row[column]) for column in drawn.series),
            row[drawn.y],
        )
        for row in rows
    ]
    frame = pd.DataFrame(cells, columns=["time", "series", "number"], dtype=object)
    dated = frame.dropna().astype({"number": float})
    table = dated.pivot_table(
        index="time", columns="series", values="number", aggfunc="sum" if drawn.add else "max"
    )
    if not table.empty:
        table = table[(-table.max()).sort_values(kind="stable").index]
    undated = int(frame["time"].isna().sum())
    return table, undated, len(frame) - undated - len(dated)


def _utc(value: date | datetime | None) -> datetime | None:
    """A time in UTC; Spark returns naive ones in the local time zone."""
    if value is None or isinstance(value, datetime):
        return None if value is None else value.astimezone(UTC)
    return datetime(value.year, value.month, value.day, tzinfo=UTC)


def _labels(table: pd.DataFrame) -> list[str]:
    """Names of series as single lines; before matplotlib 3.10, a leading underscore hides one."""
    clean = ("".join(c if c.isprintable() else "\ufffd" for c in name) for name in table)
    return [" " + (name if len(name) <= _LABEL else name[: _LABEL - 1] + "…") for name in clean]


def _lines(figure: Figure, axes: Axes, drawn: Plot, table: pd.DataFrame) -> list[str]:
    for name, label in zip(table, _labels(table), strict=True):
        line = table[name].dropna()
        axes.plot([*line.index], line.to_numpy(), marker="o", markersize=3.5, label=label)
    notes = ["times are UTC"]
    if drawn.log:
        axes.set_yscale("log")
        # From 1, and over a factor of ten at least, so that small differences look small.
        axes.set_ylim(min(1.0, table[table > 0].min().min()), max(10.0, 1.2 * table.max().max()))
        notes.append("the scale is logarithmic")
    else:
        axes.set_ylim(bottom=min(0.0, table.min().min()))
    if len(table) == 1:  # the default limits are years apart
        axes.set_xlim(table.index[0] - 36 * _HOUR, table.index[0] + 36 * _HOUR)
    axes.yaxis.set_major_formatter(_NUMBERS)
    axes.set_ylabel(drawn.label)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", title=", ".join(drawn.series), fontsize=8)
    return notes


def _heat(figure: Figure, axes: Axes, drawn: Plot, table: pd.DataFrame) -> list[str]:
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import LogFormatter

    first, last = table.index[0], table.index[-1]
    hours = (last - first) // _HOUR + 1
    step = -(-hours // MAX_COLUMNS)  # one wrong clock must not result in millions of cells
    width = -(-hours // step)
    places = [(at - first) // (step * _HOUR) for at in table.index]
    cells = table.groupby(places).max().reindex(range(width)).to_numpy().T
    edges: Any = [first + _HOUR * step * place for place in range(width + 1)]
    greatest = max(2.0, table.max().max())
    colours = LogNorm(1, greatest) if drawn.log else Normalize(0, greatest)
    mesh = axes.pcolormesh(edges, range(len(cells) + 1), cells, cmap="viridis", norm=colours)
    axes.invert_yaxis()
    axes.set_yticks([place + 0.5 for place in range(len(cells))], _labels(table), fontsize=8)
    scale = figure.colorbar(mesh, ax=axes, label=drawn.label, format=_NUMBERS)
    notes = ["times are UTC"]
    if drawn.log:
        # Below 10, those between are labelled, too: 2, and not 2 × 10⁰.
        scale.minorformatter = LogFormatter()
        notes.append("the scale is logarithmic")
    if step > 1:
        notes.append(f"of each {step:,} hours the greatest")
    return notes


def _bars(figure: Figure, axes: Axes, drawn: Plot, table: pd.DataFrame) -> list[str]:
    places = range(table.shape[1])
    bars = axes.barh(places, table.iloc[0].to_numpy())
    axes.set_yticks(places, _labels(table), fontsize=8)
    axes.bar_label(bars, fmt="{:,.3g}", padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(drawn.label)
    if drawn.most is None:
        axes.margins(x=0.1)
    else:
        axes.set_xlim(min(0.0, table.min().min()), 1.1 * drawn.most)  # room for a label beside it
    axes.grid(axis="x", alpha=0.3)
    return []
