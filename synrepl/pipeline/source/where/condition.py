"""Conditions on rows, as a typed tree, and their translation to SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from synrepl.core.errors import ConfigError
from synrepl.core.tokens import MAX_TOKEN, Range
from synrepl.pipeline.source.database.sql import identifier, literal
from synrepl.pipeline.source.database.stream_schema import (
    HEAD,
    STREAM,
    StreamSchema,
    no_such_column,
)
from synrepl.streams.columns import Column, ColumnType

#: A constant in a condition.
Value = str | int | float | bool


class WhereMismatch(ConfigError):
    """option where of the synrepl source: column {column!r} of stream {stream!r} is {type}; {wanted}"""


@dataclass(frozen=True, slots=True)
class Compared:
    """``column operator value``, with one of ``= < <= > >=``."""

    column: str
    operator: str
    value: Value


@dataclass(frozen=True, slots=True)
class OneOf:
    """``column IN (value, …)``."""

    column: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """``column LIKE 'pattern'``, with ``%``, ``_`` and the escape character ``\\``."""

    column: str
    pattern: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """``column IS NULL``."""

    column: str


@dataclass(frozen=True, slots=True)
class Not:
    """``NOT condition``."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class Every:
    """``condition AND condition AND …``."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """``condition OR condition OR …``."""

    conditions: tuple[Condition, ...]


#: A condition on the columns of a row; as in SQL, a comparison with NULL is neither true nor false.
Condition = Compared | OneOf | Like | IsNull | Not | Every | Either

#: A database may sort text by a locale. Spark compares bytes, as the collation "C" does.
_BYTES = ' COLLATE "C"'

_TEXT = (ColumnType.TEXT, ColumnType.JSON)

_CONSTANTS: dict[ColumnType, tuple[tuple[type, ...], str]] = {
    ColumnType.TEXT: ((str,), "compare it with a text in single quotes"),
    ColumnType.JSON: ((str,), "compare it with a text in single quotes"),
    ColumnType.BIGINT: ((int,), "compare it with a whole number of 64 bits"),
    ColumnType.DOUBLE: ((int, float), "compare it with a number"),
    ColumnType.BOOLEAN: ((bool,), "compare it with true or false, by = or IN"),
    ColumnType.TEXT_ARRAY: ((), "it can only be tested by IS NULL"),
}

_WHOLE = range(-(2**63), 2**63)


def check_condition(
    condition: Condition, stream_schemas: Sequence[StreamSchema], combined: bool
) -> None:
    """Check that the streams have the columns of a condition, with types that its constants fit.

    :param combined: rows have a column with the stream's name
    :raises NoSuchColumn: none of the streams has the column
    :raises WhereMismatch: a constant, or the kind of the test, does not fit a column
    """
    for test in _tests(condition):
        found = [(each, column) for each in stream_schemas if (column := _column(test, each))]
        if combined and test.column == STREAM.name and not found:
            found = [(each, STREAM) for each in stream_schemas]
        if not found:
            known = dict.fromkeys(each.name for of in stream_schemas for each in of.columns)
            where = ", ".join(each.stream for each in stream_schemas)
            raise no_such_column(test.column, where, [*([STREAM.name] * combined), *known])
        for stream_schema, column in found:
            _check_type(test, column, stream_schema.stream)


def may_match_stream(condition: Condition | None, stream: str) -> bool:
    """False if tests of the column ``stream`` exclude every row of a stream."""
    return all(
        stream in each.values
        for each in _required(condition)
        if isinstance(each, OneOf) and each.column == STREAM.name
    )


def token_range(condition: Condition | None, stream_schema: StreamSchema) -> Range:
    """The range of tokens that the tests of ``stream_id`` leave; no row outside it can pass."""
    low, high = _WHOLE[0], _WHOLE[-1]
    for each in _required(condition):
        if isinstance(each, OneOf) and each.column == _ID:
            numbers = [value for value in each.values if isinstance(value, int)]
            low, high = max(low, min(numbers)), min(high, max(numbers))
        elif isinstance(each, Compared) and each.column == _ID:
            assert isinstance(each.value, int)
            if each.operator.startswith(">"):
                low = max(low, each.value + (each.operator == ">"))
            else:
                high = min(high, each.value - (each.operator == "<"))
    if stream_schema.counts_down:
        low, high = -high, -low
    after = min(max(low - 1, 0), MAX_TOKEN)
    return Range(after, max(after, min(high, MAX_TOKEN)))


def facts_at_most(condition: Condition | None) -> int | None:
    """The greatest number of facts that can pass, if tests of ``stream_id`` list them; else None."""
    listed = [
        len(each.values)
        for each in _required(condition)
        if isinstance(each, OneOf) and each.column == _ID
    ]
    return min(listed, default=None)


def to_sql(condition: Condition | None, stream_schema: StreamSchema) -> str:
    """The condition on the rows of a stream as SQL; "" without one. A missing column is NULL."""
    if condition is None:
        return ""
    match condition:
        case Not(negated):
            return f"NOT ({to_sql(negated, stream_schema)})"
        case Every(parts):
            return " AND ".join(f"({to_sql(each, stream_schema)})" for each in parts)
        case Either(parts):
            return " OR ".join(f"({to_sql(each, stream_schema)})" for each in parts)
    column, is_text = _written_column(condition, stream_schema)
    match condition:
        case IsNull():
            return f"{column} IS NULL"
        case Like(_, pattern):
            return f"{column} LIKE {literal(pattern)}"
        case OneOf(_, values):
            return f"{column} IN ({', '.join(map(_written, values))})"
        case Compared(_, operator, value):
            order = _BYTES if is_text and operator != "=" else ""
            return f"{column} {operator} {_written(value)}{order}"


_ID = HEAD[0].name

_Test = Compared | OneOf | Like | IsNull


def _tests(condition: Condition) -> Iterator[_Test]:
    match condition:
        case Not(negated):
            yield from _tests(negated)
        case Every(parts) | Either(parts):
            for each in parts:
                yield from _tests(each)
        case _:
            yield condition


def _required(condition: Condition | None) -> Iterator[Condition]:
    """What every row that passes fulfils, with ``=`` as :class:`OneOf`."""
    match condition:
        case None:
            return
        case Every(parts):
            for each in parts:
                yield from _required(each)
        case Compared(column, "=", value):
            yield OneOf(column, (value,))
        case _:
            yield condition


def _column(test: _Test, stream_schema: StreamSchema) -> Column | None:
    return next((each for each in stream_schema.columns if each.name == test.column), None)


def _check_type(test: _Test, column: Column, stream: str) -> None:
    accepted, wanted = _CONSTANTS[column.type]
    fits: Callable[[Value], bool] = lambda value: (  # noqa: E731
        isinstance(value, accepted)
        and isinstance(value, bool) == (column.type is ColumnType.BOOLEAN)
        and (not isinstance(value, int) or value in _WHOLE)
    )
    match test:
        case IsNull():
            right = True
        case Like():
            right, wanted = column.type in _TEXT, f"LIKE is for text, {wanted}"
        case OneOf(_, values):
            right = all(map(fits, values))
        case Compared(_, operator, value):
            right = fits(value) and (operator == "=" or column.type is not ColumnType.BOOLEAN)
    if not right:
        raise WhereMismatch(column=column.name, stream=stream, type=column.type, wanted=wanted)


def _written_column(test: _Test, stream_schema: StreamSchema) -> tuple[str, bool]:
    """A column as SQL, and whether it is text."""
    column = _column(test, stream_schema)
    if column is None:
        # An untyped NULL takes the type of what it is compared with.
        return (
            (literal(stream_schema.stream), True) if test.column == STREAM.name else ("NULL", False)
        )
    name = identifier(column.name)
    if column.type is ColumnType.JSON:
        return f"CAST({name} AS text)", True
    return name, column.type is ColumnType.TEXT


def _written(value: Value) -> str:
    match value:
        case str():
            return literal(value)
        case bool():
            return str(value).lower()
        case float():
            return f"CAST('{value!r}' AS double precision)"
        case int():
            return f"CAST({value} AS bigint)"
