"""Spark's filters as conditions in SQL, where both mean exactly the same."""

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

#: Text has an order of its own in a database; Spark compares bytes, which is what "C" does.
_BYTES = ' COLLATE "C"'

#: In SQL, by the name of the parts that are given; a string is compared as it is.
_STRINGS: dict[type, Callable[[str, str], str]] = {
    s.StringStartsWith: lambda column, text: f"starts_with({column}, {text})",
    s.StringEndsWith: lambda column, text: f"right({column}, length({text})) = {text}",
    s.StringContains: lambda column, text: f"strpos({column}, {text}) > 0",
}

_WHOLE = range(-(2**63), 2**63)


def can_push(given: s.Filter, schema: StructType) -> bool:
    """True when :func:`condition` can say it; the rest is left to Spark."""
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
    """The condition on rows of a stream; a column that it lacks is null."""
    return " AND ".join(f"({_sql(each, stream_schema)})" for each in pushed)


def may_match_stream(pushed: Sequence[s.Filter], stream: str) -> bool:
    """False when no row of a stream can pass, by its name alone."""
    return all(
        stream in _values(each)
        for each in pushed
        if isinstance(each, s.EqualTo | s.In) and each.attribute == (STREAM.name,)
    )


def token_range(pushed: Sequence[s.Filter], stream_schema: StreamSchema) -> Range:
    """Outside of it, no row of a stream can pass, by its ID."""
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
    """A column as Spark sees it."""
    types: Mapping[str, ColumnType] = {column.name: column.type for column in stream_schema.columns}
    if name not in types:
        # Without a type NULL takes that of what it is compared with.
        return (literal(stream_schema.stream), str) if name == STREAM.name else ("NULL", object)
    if types[name] is ColumnType.JSON:
        return f"CAST({identifier(name)} AS text)", str
    return identifier(name), str if types[name] is ColumnType.TEXT else object


def _constant(value: object, of: DataType) -> str | None:
    """A value as SQL, if it is one of a column's type and SQL has it."""
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
