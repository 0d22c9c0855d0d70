"""Parts of pages that are computed from a result on Spark."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from synrepl.pipeline.rooms.page.charts import Bar, bars
from synrepl.pipeline.rooms.page.document import (
    MAX_TABLE_ROWS,
    Heading,
    PageSection,
    ResultPage,
    table,
)


def rows_table(rows: DataFrame, names: Sequence[str] | None = None) -> str:
    """A table of the first rows, with the number of all."""
    shown = rows if names is None else rows.select(*names)
    first = [tuple(row) for row in shown.limit(MAX_TABLE_ROWS).collect()]
    count = len(first) if len(first) < MAX_TABLE_ROWS else rows.count()
    heads = [
        Heading(field.name, isinstance(field.dataType, t.NumericType)) for field in shown.schema
    ]
    return table(heads, first, count)


def first_rows(title: str, rows: DataFrame) -> ResultPage:
    """A page with the first rows."""
    return ResultPage(
        title,
        {"rows": f"{rows.count():,}"},
        [PageSection("Rows", "In no particular order.", rows_table(rows))],
    )


def kinds_page(title: str, rows: DataFrame, kind: str, text: str) -> ResultPage:
    """A page of findings: how many there are of each kind, and the first of them.

    :param kind: the column with the kind
    :param text: what it means that there are none
    """
    counts = rows.groupBy(kind).count().orderBy(f.desc("count"), kind).collect()
    chart = bars([Bar(str(row[kind]), row["count"]) for row in counts], "findings")
    rooms = rows.select("room_id").distinct().count()
    ordered = rows.orderBy("room_id", kind, *rows.columns)
    return ResultPage(
        title,
        {
            "findings": f"{sum(row['count'] for row in counts):,}",
            "rooms with findings": f"{rooms:,}",
        },
        [
            PageSection("Kinds", text, chart),
            PageSection("Findings", "By room, kind and event.", rows_table(ordered)),
        ],
    )
