"""Recognises the schema of a Synapse database, and locates the streams in it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from synrepl.core.errors import InputError, Refused
from synrepl.storage.database import Transaction
from synrepl.storage.foreign.feed import WRITER_COLUMN, ForeignStream
from synrepl.storage.foreign.tables import TABLES


class NotSynapse(InputError):
    """this is no database of a Synapse: it has no table {missing}; check the DSN, and that its user may read the tables"""


class UnknownSchema(Refused):
    """schema {version} of this Synapse feeds stream {stream!r} in a way that synrepl does not know: {missing} is missing; follow it over the wire, and report the missing names"""


class MayNotRead(Refused):
    """the user of this DSN may not read {what} of this Synapse: GRANT pg_read_all_data TO it, or USAGE on the schema and SELECT on all tables and sequences in it"""


class NoTableForStream(InputError):
    """a Synapse of schema {version} has no table for stream {stream!r}; leave it out, or follow it over the wire"""


class LocatedStream(NamedTuple):
    """The tables of a stream in one database.

    :ivar stream: its sequence is None if this release has none yet
    :ivar with_writer: the tables that name the writer of a row
    """

    stream: ForeignStream
    with_writer: frozenset[str]


@dataclass(frozen=True, slots=True)
class Release:
    """A recognised schema.

    :ivar version: version of the schema, from ``schema_version``
    :ivar has_positions: whether per-writer positions are recorded
    :ivar unknown: by stream, the columns missing from its tables
    :ivar unreadable: by stream, what this user may not read: its tables (the stream is then
        left out of ``streams``), its sequence, or the recorded positions
    """

    version: int
    has_positions: bool
    streams: Mapping[str, LocatedStream]
    unknown: Mapping[str, str]
    unreadable: Mapping[str, str]

    def locate(self, stream: str) -> LocatedStream:
        """The tables of a stream.

        :raises NoTableForStream: this release has no table for it
        :raises UnknownSchema: its tables lack columns
        :raises MayNotRead: this user may not read them
        """
        if stream in self.unreadable and stream not in self.streams:
            raise MayNotRead(what=self.unreadable[stream])
        if stream in self.unknown:
            missing = self.unknown[stream]
            raise UnknownSchema(version=self.version, stream=stream, missing=missing)
        try:
            return self.streams[stream]
        except KeyError:
            raise NoTableForStream(version=self.version, stream=stream) from None


def recognise(txn: Transaction) -> Release:
    """Recognise the release by its tables and columns.

    :raises NotSynapse: it lacks tables that every release has
    :raises MayNotRead: this user may not read the version of the schema
    """
    columns, shut = table_columns(txn)
    for needed in (("events", "stream_ordering"), ("schema_version", "version")):
        if needed not in columns:
            raise NotSynapse(missing=needed[0])
    if "schema_version" in shut:
        raise MayNotRead(what="table schema_version")
    sequences = _sequences(txn)
    version = int(txn.execute("SELECT version FROM schema_version").fetchone()[0])
    located, unknown, unreadable = {}, {}, {}
    has_positions = ("stream_positions", "stream_id") in columns
    if "stream_positions" in shut:
        has_positions = False
        unreadable["all streams"] = "table stream_positions"
    for name, stream in _tables(columns).items():
        if (stream.feeds[0].table, stream.feeds[0].stream_id) not in columns:
            continue  # a stream that was added later, or was removed
        missing = _missing(stream, columns)
        if missing:
            unknown[name] = ", ".join(missing)
            continue
        if tables := shut & _tables_of(stream):
            unreadable[name] = f"table {', '.join(sorted(tables))}"
            continue
        if stream.sequence is not None and not sequences.get(stream.sequence, True):
            unreadable[name] = f"sequence {stream.sequence}"
            stream = replace(stream, sequence=None)
        if stream.sequence not in sequences:  # with one writer, the process may count by itself
            stream = replace(stream, sequence=None)
        tables = {feed.table for feed in stream.feeds}
        located[name] = LocatedStream(
            stream, frozenset(table for table in tables if (table, WRITER_COLUMN) in columns)
        )
    return Release(version, has_positions, located, unknown, unreadable)


def table_columns(txn: Transaction) -> tuple[set[tuple[object, ...]], set[str]]:
    """Every (table, column), and the tables that this user may not read completely.

    The information schema would leave those out, as if they did not exist.
    """
    txn.execute(
        "SELECT relname::text, attname::text, has_column_privilege(attrelid, attnum, 'SELECT')"
        " FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid"
        " WHERE relnamespace = ANY (SELECT to_regnamespace(quote_ident(name))"
        " FROM unnest(current_schemas(false)) AS name)"
        " AND relkind IN ('r', 'p', 'v') AND attnum > 0 AND NOT attisdropped"
    )
    rows = txn.fetchall()
    return {(table, column) for table, column, _ in rows}, {
        str(table) for table, _, readable in rows if not readable
    }


def _sequences(txn: Transaction) -> dict[str, bool]:
    """By sequence name, whether this user may read it."""
    txn.execute(
        "SELECT relname::text, has_sequence_privilege(pg_class.oid, 'SELECT') FROM pg_class"
        " WHERE relnamespace = ANY (SELECT to_regnamespace(quote_ident(name))"
        " FROM unnest(current_schemas(false)) AS name) AND relkind = 'S'"
    )
    return {str(name): bool(readable) for name, readable in txn.fetchall()}


def _tables_of(stream: ForeignStream) -> set[str]:
    return {table for feed in stream.feeds for table, _ in feed.columns()}


def _tables(columns: Set[tuple[object, ...]]) -> Mapping[str, ForeignStream]:
    """The streams' tables in the newest generation whose marker column exists."""
    return [tables for marker, tables in TABLES if marker is None or marker in columns][-1]


def _missing(stream: ForeignStream, columns: Set[tuple[object, ...]]) -> list[str]:
    wanted = dict.fromkeys(pair for feed in stream.feeds for pair in feed.columns())
    return [f"{table}.{column}" for table, column in wanted if (table, column) not in columns]
