"""Stream tables: created from declarations, and widened when a declaration gains a column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from synrepl.core.errors import ConfigError
from synrepl.core.tokens import Range
from synrepl.storage.database import Transaction
from synrepl.streams.columns import Column, columns
from synrepl.streams.definition import Stream

#: The first columns of every stream table.
HEAD = ("stream_id", "row_no", "writer")

#: Lock timeout of :func:`protect`, in milliseconds.
_PROTECT_MS = 1_000


class DeclarationChanged(ConfigError):
    """stream {stream!r} is declared with {change}, which its table does not allow; columns may only be added, at the end and nullable, or become nullable"""


def table_name(stream: Stream) -> str:
    """The qualified, quoted name of a stream's table."""
    return f'synrepl."{stream.name}"'


def primary_key(stream: Stream) -> str:
    """The name of the primary key of a stream's table."""
    return f"_{stream.name}_pkey"


def sequence_name(stream: Stream) -> str:
    """The qualified, quoted name of the sequence of a stream's IDs."""
    return f'synrepl."_{stream.numbered_with or stream.name}_seq"'


def id_bounds(stream: Stream, span: Range) -> tuple[int, int]:
    """The smallest and the largest stream ID whose tokens are in ``span``."""
    if stream.counts_down:
        return -span.upto, -span.after - 1
    return span.after + 1, span.upto


def ensure_tables(txn: Transaction, streams: Iterable[Stream]) -> None:
    """Create missing tables and sequences of streams, and add new columns.

    Roles that may read or append to every stream get that right on new ones.

    :raises DeclarationChanged: a declaration contradicts its table
    """
    # Two processes may start at once; DDL under IF NOT EXISTS still races.
    txn.execute("LOCK TABLE synrepl._streams IN SHARE ROW EXCLUSIVE MODE")
    for stream in streams:
        if not stream.in_memory:
            _ensure(txn, stream)
            txn.execute("SELECT synrepl.share_stream(%s)", (stream.name,))


def unprotected(txn: Transaction, streams: Iterable[Stream]) -> list[str]:
    """Streams whose tables allow changes of their rows, because an older version made them."""
    txn.execute(
        "SELECT s.stream FROM unnest(%s::text[]) AS s (stream) WHERE NOT EXISTS"
        " (SELECT FROM pg_trigger WHERE tgrelid = format('synrepl.%%I', s.stream)::regclass"
        "  AND tgname = '_never_deleted')",
        ([stream.name for stream in streams if not stream.in_memory],),
    )
    return [str(name) for (name,) in txn.fetchall()]


def protect(txn: Transaction, stream: str) -> None:
    """Make a stream's table refuse every change of its rows except trimming.

    It waits for transactions that have written to the stream, and writers queue behind it,
    so it does not wait for long.

    :raises LockNotAvailable: such a transaction is still open; try again later
    """
    txn.execute(f"SET LOCAL lock_timeout = '{_PROTECT_MS}ms'")
    txn.execute("SELECT synrepl.protect_stream(%s)", (stream,))


def _ensure(txn: Transaction, stream: Stream) -> None:
    wanted = columns(stream)
    txn.execute("SELECT counts_down FROM synrepl._streams WHERE stream = %s", (stream.name,))
    known = txn.fetchone_or_none()
    if known is None:
        _create(txn, stream, wanted)
    elif bool(known[0]) != stream.counts_down:
        raise DeclarationChanged(stream=stream.name, change="the other direction of counting")
    else:
        _widen(txn, stream, wanted)
    if stream.tagged:
        _check_kinds(txn, stream)


def _create(txn: Transaction, stream: Stream, wanted: tuple[Column, ...]) -> None:
    cells = "".join(f", {_definition(column)}" for column in wanted)
    down = " INCREMENT BY -1 MAXVALUE -1 START WITH -1" if stream.counts_down else ""
    txn.execute(f"CREATE SEQUENCE IF NOT EXISTS {sequence_name(stream)} AS bigint{down}")
    txn.execute(
        f"CREATE TABLE {table_name(stream)} (stream_id bigint NOT NULL, row_no integer NOT NULL,"
        f' writer text NOT NULL{cells}, CONSTRAINT "{primary_key(stream)}" PRIMARY KEY (stream_id, row_no))'
    )
    txn.execute(
        "INSERT INTO synrepl._streams (stream, counts_down, sequence) VALUES (%s, %s, %s)",
        (stream.name, stream.counts_down, sequence_name(stream)),
    )
    txn.execute("SELECT synrepl.add_writer(%s, 'sql')", (stream.name,))
    txn.execute("SELECT synrepl.protect_stream(%s)", (stream.name,))


def _check_kinds(txn: Transaction, stream: Stream) -> None:
    """Make the table refuse unknown kinds; the declaration may have gained some."""
    name = f"_{stream.name}_kind"
    kinds = ", ".join(f"'{kind}'" for kind in stream.kinds)
    table = table_name(stream)
    txn.execute(
        "SELECT obj_description(oid, 'pg_constraint') FROM pg_constraint"
        " WHERE conname = %s AND conrelid = %s::regclass",
        (name, table),
    )
    known = txn.fetchone_or_none()
    if known is None or known[0] != kinds:
        txn.execute(
            f'ALTER TABLE {table} DROP CONSTRAINT IF EXISTS "{name}",'
            f' ADD CONSTRAINT "{name}" CHECK (kind IN ({kinds}))'
        )
        txn.execute(f'COMMENT ON CONSTRAINT "{name}" ON {table} IS %s', (kinds,))


def _widen(txn: Transaction, stream: Stream, wanted: tuple[Column, ...]) -> None:
    txn.execute(
        "SELECT attname, format_type(atttypid, atttypmod), NOT attnotnull FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (table_name(stream),),
    )
    present = {name: (kind, nullable) for name, kind, nullable in txn.fetchall()[len(HEAD) :]}
    for change in _contradictions(stream, wanted, present):
        raise DeclarationChanged(stream=stream.name, change=change)
    for column in wanted:
        if column.name not in present:
            txn.execute(f"ALTER TABLE {table_name(stream)} ADD COLUMN {_definition(column)}")
        elif column.nullable and not present[column.name][1]:
            txn.execute(
                f'ALTER TABLE {table_name(stream)} ALTER COLUMN "{column.name}" DROP NOT NULL'
            )


def _contradictions(
    stream: Stream, wanted: tuple[Column, ...], present: Mapping[str, tuple[str, bool]]
) -> Iterator[str]:
    """Differences between declaration and table (type and nullability by column) that cannot be migrated."""
    for column in wanted:
        kind, nullable = present.get(column.name, (column.type.sql, column.nullable))
        if column.name not in present and not column.nullable:
            yield f"a new column {column.name!r} that is not nullable"
        if kind != column.type.sql:
            yield f"column {column.name!r} as {column.type.sql} (the table has {kind})"
        if nullable and not column.nullable:
            yield f"column {column.name!r} as not nullable (the table allows nulls)"
    for name in sorted(present.keys() - {column.name for column in wanted}):
        yield f"no column {name!r} any more"
    # Rows with kinds are arrays of their kind's cells, so the order of the table does not matter.
    before = [column.name for column in wanted[: len(present)]]
    if not stream.tagged and before != list(present):
        yield f"columns in the order {', '.join(before)} (the table has {', '.join(present)})"


def _definition(column: Column) -> str:
    return f'"{column.name}" {column.type.sql}{"" if column.nullable else " NOT NULL"}'
