"""What a job is, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import DataFrame
from pyspark.sql import types as t

from synrepl.streams.columns import Column


@dataclass(frozen=True, slots=True)
class JobInput:
    """The rows that a job is about.

    :ivar streams: which, those of them that are in the lake; None for all
    :ivar columns: of the streams' own columns, beside those of :mod:`.longform`; null in the
        rows of streams that have none of that name and type
    :ivar seen: the job wants to know when rows were seen, which costs a join
    """

    streams: tuple[str, ...] | None = None
    columns: tuple[Column, ...] = ()
    seen: bool = True


class PlotKind(StrEnum):
    """How a picture shows numbers."""

    LINES = "lines"  # over time, a line for each series
    HEAT = "heat"  # over time, a row for each series, the number as a colour
    BARS = "bars"  # a bar for each series


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture of a job's rows.

    :ivar x: the column with the time; of no use to bars
    :ivar y: the column with the number
    :ivar series: the columns that tell series apart
    :ivar label: what the number is, with its unit
    :ivar add: numbers of one series and time are added up; else the greatest is shown
    :ivar log: on a logarithmic scale
    """

    kind: PlotKind
    y: str
    series: tuple[str, ...]
    label: str
    x: str = ""
    add: bool = True
    log: bool = False


@dataclass(frozen=True, slots=True)
class LakeJob:
    """A question to a lake.

    :ivar name: what it is asked for by
    :ivar title: what it tells, for people
    :ivar schema: of what ``transform`` gives: names and types, in order
    :ivar transform: from rows in the form of :mod:`.longform` to the answer
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
    """A schema, column by column."""
    return t.StructType([t.StructField(name, type_) for name, type_ in columns.items()])
