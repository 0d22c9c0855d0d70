"""Counts the rows of each range on both sides, and computes checksums over all their columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf

from synrepl.pipeline.lake.token_ranges import TokenRanges
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.streams.columns import Column, ColumnType


class RangeSums(NamedTuple):
    """Checksums of the rows of one range, in any order.

    :ivar rows: the number of rows
    :ivar low: the sum of the lower halves of the rows' digests, which 2^31 rows do not overflow
    :ivar high: the sum of the upper halves
    :ivar xor: the exclusive or of all digests
    """

    rows: int = 0
    low: int = 0
    high: int = 0
    xor: int = 0


class ComparedRows(NamedTuple):
    """The rows of one stream on both sides, with the same columns.

    :ivar numbered: rows have the same ``row_no`` on both sides
    """

    source: DataFrame
    lake: DataFrame
    stream_schema: StreamSchema
    numbered: bool

    def digests(self, ranges: TokenRanges, more: Sequence[SparkColumn] = ()) -> DataFrame:
        """``in_lake``, ``range``, ``stream_id``, ``row_no``, ``writer``, ``digest`` of every row.

        :param more: further columns
        """

        def number_of(tokens: pa.Array) -> pa.Array:
            return pa.array(ranges.numbers(tokens.to_numpy(zero_copy_only=False)), pa.int64())

        # Spark takes the kind of function from the type hints, which its own stubs do not know.
        number = arrow_udf(number_of, "long")  # type: ignore[call-overload]
        token = -f.col("stream_id") if self.stream_schema.counts_down else f.col("stream_id")
        # Ranges are numbered after the digest, so that little is sent to Python.
        wanted = [
            f.col("stream_id"),
            f.col("row_no"),
            f.col("writer"),
            self._digest().alias("digest"),
            *more,
        ]
        both = self.source.select(f.lit(False).alias("in_lake"), *wanted).unionAll(
            self.lake.select(f.lit(True).alias("in_lake"), *wanted)
        )
        return both.withColumn("range", number(token))

    def _digest(self) -> SparkColumn:
        parts: list[SparkColumn] = []
        for column in self.stream_schema.columns:
            if column.name != "row_no" or self.numbered:
                value = exact_value(column)
                # The hash skips nulls.
                parts += [value, value.isNull()] if column.nullable else [value]
        return f.xxhash64(*parts)


def exact_value(column: Column, source: str = "") -> SparkColumn:
    """A column as a value that is equal only if all bytes are.

    :param source: alias of the DataFrame, with a dot
    """
    value = f.col(f"{source}`{column.name}`")
    if column.type is ColumnType.DOUBLE:
        return value.cast("string")  # as a number, 0 equals -0
    if column.type is ColumnType.TEXT_ARRAY:
        return f.to_json(value, {"ignoreNullFields": "false"})
    return value


def compare_sums(
    sides: ComparedRows, ranges: TokenRanges
) -> Mapping[int, tuple[RangeSums, RangeSums]]:
    """By number of range, the checksums of the source and of the lake; reads each side once."""
    digest = f.col("digest")
    summed = (
        sides.digests(ranges)
        .groupBy("range", "in_lake")
        .agg(
            f.count("*").alias("rows"),
            f.sum(digest.bitwiseAND(f.lit(0xFFFFFFFF))).alias("low"),
            f.sum(f.shiftrightunsigned(digest, 32)).alias("high"),
            f.bit_xor(digest).alias("xor"),
        )
    )
    found: dict[int, list[RangeSums]] = defaultdict(lambda: [RangeSums(), RangeSums()])
    for row in summed.toLocalIterator():
        sums = RangeSums(row["rows"], row["low"], row["high"], row["xor"])
        found[row["range"]][row["in_lake"]] = sums
    return {number: (source, lake) for number, (source, lake) in sorted(found.items())}
