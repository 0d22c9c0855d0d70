"""Compares ranges that differ row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import chain
from typing import NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from synrepl.pipeline.lake.check.report import CHANGED, DOUBLED, MISSING, ONLY_IN_LAKE, Example
from synrepl.pipeline.lake.check.revised_events import (
    NO_REVISIONS,
    Revisions,
    doubts,
    is_doubtful,
    revisable_aggregates,
    revisable_parts,
    unexplained_rows,
    was_purged,
    was_revised,
)
from synrepl.pipeline.lake.check.sums import ComparedRows, exact_value
from synrepl.pipeline.lake.failover.lost_rows import LostRows, losing_incarnation, summarize_lost
from synrepl.pipeline.lake.table_failovers import LossWindow
from synrepl.pipeline.lake.token_ranges import TokenRanges
from synrepl.pipeline.source.database.whole_events import has_whole_events

_COUNTS = ("missing", "only_in_lake", "doubled", "changed")
_WORDS = (MISSING, ONLY_IN_LAKE, DOUBLED, CHANGED)

#: Rows that differ because the database changed since, or may do so.
_EXCUSED = ("purged", "revised", "doubtful")


class DifferenceCounts(NamedTuple):
    """Numbers of rows of one range that differ, by kind of difference."""

    missing: int = 0
    only_in_lake: int = 0
    doubled: int = 0
    changed: int = 0


class RowDifferences(NamedTuple):
    """The result of the comparison.

    :ivar counts: differences by number of range
    :ivar examples: the first rows that differ
    :ivar lost: rows of the lake that the database lost in failovers; not in counts or examples
    :ivar purged: number of whole events that the database has purged since; not in counts or examples
    :ivar revised: number of those that it has judged again or redacted since; not in counts or examples
    """

    counts: Mapping[int, DifferenceCounts]
    examples: list[Example]
    lost: list[LostRows]
    purged: int = 0
    revised: int = 0


def find_differences(
    sides: ComparedRows,
    ranges: TokenRanges,
    wanted: Sequence[int],
    examples: int,
    failovers: Sequence[LossWindow] = (),
    revisions: Revisions = NO_REVISIONS,
) -> RowDifferences:
    """Compare some ranges row by row.

    :param sides: at least all rows of the ranges to compare
    :param wanted: the numbers of these ranges
    :param examples: maximum number of examples
    :param failovers: the tokens that failovers may have lost
    :param revisions: of whole events
    """
    revisable = has_whole_events(sides.stream_schema)
    more = revisable_parts(sides.stream_schema, revisions) if revisable else []
    digests = sides.digests(ranges, more).where(f.col("range").isin(list(wanted)))
    found = _numbered(digests, failovers, revisable) if sides.numbered else _by_content(digests)
    bad = found.where(f"{_any((*_COUNTS, *_EXCUSED))} OR incarnation IS NOT NULL").persist()
    # Rows that are only in the lake are no mistake if the source deletes rows.
    shown = _COUNTS if sides.numbered else [name for name in _COUNTS if name != "only_in_lake"]
    try:
        lost = summarize_lost(bad.where("incarnation IS NOT NULL")) if failovers else []
        totals = (
            bad.where(_any(_COUNTS))
            .groupBy("range")
            .agg(*(f.sum(name).alias(name) for name in _COUNTS))
        )
        excused = bad.agg(*(f.sum(name).alias(name) for name in _EXCUSED)).collect()[0]
        purged, revised, doubtful = (int(each or 0) for each in excused)
        unexplained = _Unexplained(examples)
        if doubtful:
            unexplained.look_among(bad.where("doubtful > 0"), revisions)
        counts = {
            row["range"]: DifferenceCounts(*(int(row[name]) for name in _COUNTS))
            for row in totals.toLocalIterator()
        }
        mistakes = bad.where(_any(shown))
        first = mistakes.orderBy(f.abs("stream_id"), "row_no").limit(examples).collect()
    finally:
        bad.unpersist()
    named = [
        Example(word, row["stream_id"], row["row_no"])
        for row in first
        for name, word in zip(_COUNTS, _WORDS, strict=True)
        if name in shown and row[name]
    ]
    revised += doubtful - unexplained.counts.total()
    return RowDifferences(
        unexplained.added_to(counts),
        _first(examples, named, unexplained.examples),
        lost,
        purged,
        revised,
    )


class _Unexplained:
    """Doubtful rows that the database cannot have changed.

    :param limit: maximum number of examples
    :ivar counts: their number by number of range
    :ivar examples: the first of them
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.counts: Counter[int] = Counter()
        self.examples: list[Example] = []

    def look_among(self, rows: DataFrame, revisions: Revisions) -> None:
        """Ask the database about doubtful rows."""
        for number, stream_id, row_no in unexplained_rows(rows, revisions):
            self.counts[number] += 1
            found = [Example(CHANGED, stream_id, row_no)]
            self.examples = _first(self._limit, self.examples, found)

    def added_to(self, counts: Mapping[int, DifferenceCounts]) -> dict[int, DifferenceCounts]:
        """The differences by number of range, with these."""
        found = dict(counts)
        for number, more in self.counts.items():
            known = found.get(number, DifferenceCounts())
            found[number] = known._replace(changed=known.changed + more)
        return found


def _first(limit: int, *examples: Iterable[Example]) -> list[Example]:
    """The first of some examples, in the order of their facts."""
    return nsmallest(limit, chain(*examples), lambda each: (abs(each.stream_id), each.row_no or 0))


def changed_columns(sides: ComparedRows) -> Mapping[tuple[int, int], tuple[str, ...]]:
    """By stream ID and row number, the columns in which rows of both sides differ.

    :param sides: few rows
    """
    columns = [
        column
        for column in sides.stream_schema.columns
        if column.name not in ("stream_id", "row_no")
    ]
    differ = [
        f.when(
            ~exact_value(column, "source.").eqNullSafe(exact_value(column, "lake.")),
            f.lit(column.name),
        )
        for column in columns
    ]
    both = sides.source.alias("source").join(sides.lake.alias("lake"), ["stream_id", "row_no"])
    rows = both.select("stream_id", "row_no", f.array_compact(f.array(*differ)).alias("columns"))
    return {(row[0], row[1]): tuple(row[2]) for row in rows.toLocalIterator() if row[2]}


def _numbered(digests: DataFrame, failovers: Sequence[LossWindow], revisable: bool) -> DataFrame:
    """Differing rows if stream ID and row number identify a row on both sides.

    :param revisable: the rows have :func:`.revisable_parts`
    """
    source, lake = f.count_if(~f.col("in_lake")), f.count_if("in_lake")
    keyed = digests.groupBy("stream_id", "row_no").agg(
        f.first("range").alias("range"),
        source.alias("source"),
        lake.alias("lake"),
        (f.min("digest") != f.max("digest")).alias("differ"),
        f.max("writer").alias("writer"),
        *(revisable_aggregates() if revisable else ()),
    )
    token = f.abs("stream_id")
    keyed = keyed.withColumns({"token": token, "may_be_lost": losing_incarnation(failovers, token)})
    only_in_lake, lost = f.col("source") == 0, f.col("may_be_lost").isNotNull()
    changed = (f.col("source") > 0) & (f.col("lake") > 0) & f.col("differ")
    purged = was_purged() if revisable else f.lit(False)
    revised = was_revised() if revisable else f.lit(False)
    doubtful = is_doubtful() if revisable else f.lit(False)
    return keyed.select(
        "range",
        "stream_id",
        "row_no",
        f.when(f.col("lake") == 0, f.col("source")).otherwise(0).alias("missing"),
        _one(only_in_lake & ~lost).alias("only_in_lake"),
        f.greatest(f.col("lake") - 1, f.lit(0)).alias("doubled"),
        _one(changed & ~purged & ~revised & ~doubtful).alias("changed"),
        _one(changed & purged).alias("purged"),
        _one(changed & revised).alias("revised"),
        _one(changed & doubtful).alias("doubtful"),
        *(doubts() if revisable else ()),
        "writer",
        "token",
        f.when(only_in_lake, f.col("may_be_lost")).alias("incarnation"),
    )


def _by_content(digests: DataFrame) -> DataFrame:
    """Differing rows if row numbers depend on when the rows were read.

    A row that only the source has, and a row of the same fact that only the lake has, count as one
    changed row.
    """
    once = digests.where(~f.col("in_lake")).unionAll(
        digests.where("in_lake").dropDuplicates(["stream_id", "row_no", "digest"])
    )
    source, lake = f.count_if(~f.col("in_lake")), f.count_if("in_lake")
    facts = (
        once.groupBy("range", "stream_id", "digest")
        .agg((source - lake).alias("more"))
        .groupBy("range", "stream_id")
        .agg(
            f.sum(f.greatest(f.col("more"), f.lit(0))).alias("only_source"),
            f.sum(f.greatest(-f.col("more"), f.lit(0))).alias("only_lake"),
        )
        .withColumn("changed", f.least("only_source", "only_lake"))
    )
    doubled = (
        digests.where("in_lake")
        .groupBy("range", "stream_id", "row_no")
        .agg((f.count("*") - 1).alias("doubled"))
        .where("doubled > 0")
    )
    none = f.lit(0).cast("long")
    excused = [f.lit(0).alias(name) for name in _EXCUSED]
    no_failover = f.lit(None).cast("int").alias("incarnation")
    return facts.select(
        "range",
        "stream_id",
        f.lit(None).cast("long").alias("row_no"),
        (f.col("only_source") - f.col("changed")).alias("missing"),
        (f.col("only_lake") - f.col("changed")).alias("only_in_lake"),
        none.alias("doubled"),
        "changed",
        *excused,
        no_failover,
    ).unionAll(
        doubled.select(
            "range",
            "stream_id",
            "row_no",
            none.alias("missing"),
            none.alias("only_in_lake"),
            "doubled",
            none.alias("changed"),
            *excused,
            no_failover,
        )
    )


def _any(counts: Sequence[str]) -> str:
    return " OR ".join(f"{name} > 0" for name in counts)


def _one(condition: SparkColumn) -> SparkColumn:
    return f.when(condition, 1).otherwise(0)
