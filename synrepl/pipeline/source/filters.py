"""Translates Spark's filters to SQL conditions, where both mean exactly the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import datasource as s
from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType, StructType

from synrepl.core.tokens import MAX_TOKEN, Range
from synrepl.pipeline.source.database.sql import identifier, literal
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.read_schema import STREAM
from synrepl.streams.columns import ColumnType

_COMPARISONS = {
    s.EqualTo: "=",
    s.EqualNullSafe: "IS NOT DISTINCT FROM",
    s.GreaterThan: ">",
    s.GreaterThanOrEqual: ">=",
    s.LessThan: "<",
    s.LessThanOrEqual: "<=",
}

_ORDERED = (s.GreaterThan, s.GreaterThanOrEqual, s.LessThan, s.LessThanOrEqual)

#: A database may sort text by a locale. Spark compares bytes, as the collation "C" does.
_BYTES = ' COLLATE "C"'

#: SQL for each kind of string match, from the column and the literal; no wildcards are interpreted.
_STRINGS: dict[type, Callable[[str, str], str]] = {
    s.StringStartsWith: lambda column, text: f"starts_with({column}, {text})",
    s.StringEndsWith: lambda column, text: f"right({column}, length({text})) = {text}",
    s.StringContains: lambda column, text: f"strpos({column}, {text}) > 0",
}

_WHOLE = range(-(2**63), 2**63)


def can_push(given: s.Filter, schema: StructType) -> bool:
    """True if :func:`condition` can express the filter; Spark applies the others itself."""
    if isinstance(given, s.Not):
        return can_push(given.child, schema)
    path = given.attribute  # type: ignore[attr-defined]
    if len(path) != 1 or path[0] not in schema.fieldNames():
        return False
    of = schema[path[0]].dataType
    if isinstance(given, s.IsNull | s.IsNotNull):
        return True
    if isinstance(given, s.In):
        return bool(given.value) and all(_constant(each, of) is not None for each in given.value)
    if type(given) in _STRINGS:
        return isinstance(of, StringType) and _constant(given.value, of) is not None  # type: ignore[attr-defined]
    return type(given) in _COMPARISONS and _constant(given.value, of) is not None  # type: ignore[attr-defined]


def condition(pushed: Sequence[s.Filter], stream_schema: StreamSchema) -> str:
    """The filters as one SQL condition on the rows of a stream. A column that the stream lacks is NULL."""
    return " AND ".join(f"({_sql(each, stream_schema)})" for each in pushed)


def may_match_stream(pushed: Sequence[s.Filter], stream: str) -> bool:
    """False if the filters on the stream's name exclude every row of a stream."""
    return all(
        stream in _values(each)
        for each in pushed
        if isinstance(each, s.EqualTo | s.In) and each.attribute == (STREAM.name,)
    )


def token_range(pushed: Sequence[s.Filter], stream_schema: StreamSchema) -> Range:
    """The range of tokens that the filters on ``stream_id`` leave; no row outside it can pass."""
    low, high = _WHOLE[0], _WHOLE[-1]
    for each in pushed:
        if isinstance(each, s.Not) or getattr(each, "attribute", None) != ("stream_id",):
            continue
        if isinstance(each, s.EqualTo | s.In):
            low, high = max(low, min(_values(each))), min(high, max(_values(each)))
        elif isinstance(each, s.GreaterThan | s.GreaterThanOrEqual):
            low = max(low, each.value + isinstance(each, s.GreaterThan))
        elif isinstance(each, s.LessThan | s.LessThanOrEqual):
            high = min(high, each.value - isinstance(each, s.LessThan))
    if stream_schema.counts_down:
        low, high = -high, -low
    after = min(max(low - 1, 0), MAX_TOKEN)
    return Range(after, max(after, min(high, MAX_TOKEN)))


def _values(given: s.EqualTo | s.In) -> Sequence[Any]:
    return given.value if isinstance(given, s.In) else (given.value,)


def _sql(given: s.Filter, stream_schema: StreamSchema) -> str:
    if isinstance(given, s.Not):
        return f"NOT ({_sql(given.child, stream_schema)})"
    name = given.attribute[0]  # type: ignore[attr-defined]
    column, of = _column(name, stream_schema)
    if isinstance(given, s.IsNull):
        return f"{column} IS NULL"
    if isinstance(given, s.IsNotNull):
        return f"{column} IS NOT NULL"
    if isinstance(given, s.In):
        return f"{column} IN ({', '.join(_written(each) for each in given.value)})"
    value = _written(given.value)  # type: ignore[attr-defined]
    if (said := _STRINGS.get(type(given))) is not None:
        return said(column, value)
    order = _BYTES if of is str and isinstance(given, _ORDERED) else ""
    return f"{column} {_COMPARISONS[type(given)]} {value}{order}"


def _column(name: str, stream_schema: StreamSchema) -> tuple[str, type]:
    """A column as SQL, and the Python type that Spark compares it as (``object``: not text)."""
    types: Mapping[str, ColumnType] = {column.name: column.type for column in stream_schema.columns}
    if name not in types:
        # An untyped NULL takes the type of what it is compared with.
        return (literal(stream_schema.stream), str) if name == STREAM.name else ("NULL", object)
    if types[name] is ColumnType.JSON:
        return f"CAST({identifier(name)} AS text)", str
    return identifier(name), str if types[name] is ColumnType.TEXT else object


def _constant(value: object, of: DataType) -> str | None:
    """A value as SQL; None if it is not of the column's type, or cannot be written in SQL."""
    if isinstance(of, StringType) and of.collation == StringType().collation:
        fits = isinstance(value, str) and "\0" not in value
    elif isinstance(of, LongType):
        fits = type(value) is int and value in _WHOLE
    elif isinstance(of, BooleanType):
        fits = isinstance(value, bool)
    elif isinstance(of, DoubleType):
        fits = isinstance(value, float)
    else:
        fits = False
    return _written(value) if fits else None


def _written(value: object) -> str:
    if isinstance(value, str):
        return literal(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"CAST('{value!r}' AS double precision)"
    return f"CAST({value} AS bigint)"
