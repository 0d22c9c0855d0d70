"""The declaration of a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import DataFrame
from pyspark.sql import types as t

from synrepl.streams.columns import Column


@dataclass(frozen=True, slots=True)
class JobInput:
    """The rows that a job reads.

    :ivar streams: names of the streams to read, if they are in the lake; None for all
    :ivar columns: columns of the streams to add to those of :mod:`.longform`; null in the rows of
        streams without a column of this name and type
    :ivar needs_seen_ms: the job needs ``seen_ms``, which costs a join
    """

    streams: tuple[str, ...] | None = None
    columns: tuple[Column, ...] = ()
    needs_seen_ms: bool = True


class PlotKind(StrEnum):
    """How a chart shows numbers."""

    LINES = "lines"  # over time, a line for each series
    HEAT = "heat"  # over time, a row for each series, the number as a colour
    BARS = "bars"  # a bar for each series


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart of a job's result.

    :ivar x: the column with the time; unused by bars
    :ivar y: the column with the number
    :ivar series: the columns that identify a series
    :ivar label: the name of the number, with its unit
    :ivar add: add the numbers of one series and time; otherwise show the greatest
    :ivar log: use a logarithmic scale
    :ivar most: the greatest possible number, which the axis of bars reaches whatever the numbers
        are; None if there is none
    """

    kind: PlotKind
    y: str
    series: tuple[str, ...]
    label: str
    x: str = ""
    add: bool = True
    log: bool = False
    most: float | None = None


@dataclass(frozen=True, slots=True)
class LakeJob:
    """A question to a lake.

    :ivar name: the argument of ``synrepl lake run``
    :ivar title: a title for people
    :ivar input: the rows that it reads
    :ivar schema: names and types of the columns of the result, in order
    :ivar plot: a chart of the result
    :ivar transform: computes the result from rows in the form of :mod:`.longform`
    """

    name: str
    title: str
    input: JobInput
    schema: t.StructType
    plot: Plot
    transform: Callable[[DataFrame], DataFrame]


TEXT = t.StringType()
COUNT = t.LongType()
NUMBER = t.DoubleType()
DAY = t.DateType()
TIME = t.TimestampType()


def schema(**columns: t.DataType) -> t.StructType:
    """A schema from column names and types."""
    return t.StructType([t.StructField(name, type_) for name, type_ in columns.items()])
