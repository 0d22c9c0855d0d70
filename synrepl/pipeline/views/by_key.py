"""The newest row of each key, and what changed between two positions.

Rows are those of one stream, from the data source or from a lake. The order of the rows of a key is
that of their tokens, whatever writer they are of and in whatever order they became visible.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from synrepl.core.errors import InputError
from synrepl.pipeline.source.database.stream_schema import HEAD, no_such_column
from synrepl.positions.vector import PositionVector

#: The column that :func:`changes_by_key` adds, with the words of Delta's change feed.
CHANGE = "_change_type"

_ID, _ROW, _WRITER = (column.name for column in HEAD)


class KeyMissing(InputError):
    """the rows of a view have to be identified: name one or more columns that are the key"""


def latest_by_key(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The newest row of each key: its current state. Keys that are null are equal.

    :param rows: of one stream, with ``stream_id`` and ``row_no``
    :param keys: the columns of the key, such as ``["room_id", "user_id"]``
    :raises KeyMissing: :raises NoSuchColumn:
    """
    require_columns(rows, keys, [_ID, _ROW])
    newest = f.max_by(f.struct(*map(_column, rows.columns)), _place())
    return rows.groupBy(*map(_column, keys)).agg(newest.alias("_row")).select("_row.*")


def changes_by_key(
    rows: DataFrame, keys: Sequence[str], after: PositionVector | str, upto: PositionVector | str
) -> DataFrame:
    """What changed between two positions: a change feed of :func:`latest_by_key`.

    A key that is new has one row, of the type ``insert``; one that was there before has two,
    ``update_preimage`` with its row at ``after`` and ``update_postimage`` with that at ``upto``.
    Several changes of a key are one. A stream has no deletions: a fact that ends something is a
    change like others.

    :param rows: all rows of one stream up to ``upto``, with ``stream_id``, ``row_no`` and ``writer``
    :param after: a position, such as ``120~w1.140``
    :raises KeyMissing: :raises NoSuchColumn: :raises BadVector: it is no position
    """
    require_columns(rows, keys, [_ID, _ROW, _WRITER])
    read = rows.where(_within(upto))
    row, old = f.struct(*map(_column, rows.columns)), _within(after)
    sides = read.groupBy(*map(_column, keys)).agg(
        f.max_by(f.when(old, row), f.when(old, _place())).alias("_old"),
        f.max_by(f.when(~old, row), f.when(~old, _place())).alias("_new"),
    )
    changed = sides.where("_new IS NOT NULL")
    before = f.struct(f.lit("update_preimage").alias(CHANGE), f.col("_old").alias("_row"))
    kind = f.when(f.col("_old").isNull(), "insert").otherwise("update_postimage")
    now = f.struct(kind.alias(CHANGE), f.col("_new").alias("_row"))
    both = f.when(f.col("_old").isNull(), f.array(now)).otherwise(f.array(before, now))
    return changed.select(f.explode(both).alias("_both")).select("_both._row.*", f"_both.{CHANGE}")


def require_columns(rows: DataFrame, keys: Sequence[str], more: Sequence[str]) -> None:
    """Check that rows have the columns of a key, and others.

    :raises KeyMissing: there are no keys :raises NoSuchColumn:
    """
    if not keys:
        raise KeyMissing
    for name in (*keys, *more):
        if name not in rows.columns:
            raise no_such_column(name, "the rows of the view", rows.columns)


def _place() -> Column:
    """What rows of a stream are ordered by: the token, then the number of the row in the fact."""
    return f.struct(f.abs(_column(_ID)), _column(_ROW))


def _within(position: PositionVector | str) -> Column:
    at = PositionVector.parse(position) if isinstance(position, str) else position
    token: Column = f.lit(at.linear)
    for writer in at.writers:
        token = f.when(_column(_WRITER) == writer, f.lit(at[writer])).otherwise(token)
    return f.abs(_column(_ID)) <= token


def _column(name: str) -> Column:
    return f.col("`" + name.replace("`", "``") + "`")
