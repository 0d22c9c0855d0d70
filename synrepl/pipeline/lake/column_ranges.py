"""The extremes of a column in a data file, by which readers of a lake skip files."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa

#: A number, or a time in UTC.
Extreme = int | datetime


class ColumnRange(NamedTuple):
    """The extremes of a column of numbers or times in a file; both are None if no row has a value.

    :ivar nulls: the number of rows without a value
    """

    column: str
    low: Extreme | None
    high: Extreme | None
    nulls: int

    def merged(self, low: Extreme | None, high: Extreme | None, nulls: int) -> ColumnRange:
        """The extremes of these rows and of others. All values of a column have one type."""
        lows: list[Extreme] = [each for each in (self.low, low) if each is not None]
        highs: list[Extreme] = [each for each in (self.high, high) if each is not None]
        return ColumnRange(
            self.column,
            min(lows, default=None),
            max(highs, default=None),
            self.nulls + nulls,
        )


_PLAIN_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def skipping_columns(schema: pa.Schema) -> list[str]:
    """The columns of numbers and times, besides the stream ID, of which the log has the extremes of each file."""
    return [
        field.name
        for field in schema
        if (pa.types.is_int64(field.type) or pa.types.is_timestamp(field.type))
        and field.name not in ("stream_id", "row_no")
        and _PLAIN_NAME.fullmatch(field.name)
    ]


def in_log(extreme: Extreme) -> int | str:
    """An extreme as statistics of a Delta log have it.

    Times are in milliseconds there, and readers add one to the greatest. Those of a lake are whole milliseconds.

    Source: the Delta transaction log protocol, "Per-file Statistics".
    """
    if isinstance(extreme, int):
        return extreme
    return extreme.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + (
        f"{extreme.microsecond // 1000:03}Z"
    )
