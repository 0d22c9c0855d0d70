"""Prepares the database that a lake is replayed into."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from synrepl.core.errors import Refused
from synrepl.core.tokens import Token
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.dataframe import table_dataframe
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.database.open import NoStreamTables, open_source_database
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.database.synapse_database import SynapseDatabase
from synrepl.storage import incarnations, migrations
from synrepl.storage.database import Transaction
from synrepl.storage.migrations import Migration, MigrationPhase
from synrepl.storage.staging import with_ids as preserved
from synrepl.storage.tables import ensure_tables, table_name
from synrepl.streams.columns import columns as columns_of
from synrepl.streams.declared import declare
from synrepl.streams.definition import Stream
from synrepl.streams.synapse import SYNAPSE_STREAMS

#: The ``application_name`` of the connections.
INSTANCE = "replay"

_SYNAPSE = {stream.name: stream for stream in SYNAPSE_STREAMS}


class NotACopy(Refused):
    """the database at {where} is that of a real Synapse, which is only read; replay into another one"""


def prepare_copy(
    spark: SparkSession, dsn: str, tables: Sequence[StreamTable]
) -> dict[str, StreamSchema]:
    """Create the schema and the tables of streams that do not exist.

    Streams of Synapse get their tables from the catalogue, others from the lake's columns. A column
    without nulls in the lake is not nullable in the copy: a master that is started later with the
    real declaration can allow nulls, but could not forbid them.

    :returns: the columns of all streams of the database, by stream
    :raises NotACopy: :raises SchemaBehind: :raises DatabaseAway: :raises BadDeclaration:
    :raises NotConfirmed:
    """
    with BlockingDatabase(dsn, INSTANCE) as database:
        try:
            source = open_source_database(dsn, INSTANCE)
        except NoStreamTables:
            while database.run("migrate", _apply_next):
                pass
            there: set[str] = set()
        else:
            there = set(source.streams)
            source.close()
            if isinstance(source, SynapseDatabase):
                raise NotACopy(where=database.address.where)
            database.run("check the schema", _check)
        new = [_stream(spark, table) for table in tables if table.stream not in there]
        if new:
            database.run("make tables", lambda txn: ensure_tables(txn, new))
    source = open_source_database(dsn, INSTANCE)
    try:
        return {stream: source.stream_schema(stream) for stream in source.streams}
    finally:
        source.close()


def finish_copy(dsn: str, stream: str, upto: Token) -> None:
    """Advance a stream's sequence past a token, and record the token as its linear position.

    :raises StreamBusy: :raises DatabaseAway:
    """
    with BlockingDatabase(dsn, INSTANCE) as database:
        database.run("settle", lambda txn: preserved.settle(txn, stream, upto))
        database.run("move the sequence", lambda txn: preserved.move_sequence(txn, stream))


def highest_token(dsn: str, table: StreamTable) -> Token:
    """The highest token of a stream in a database, 0 if it has no facts."""
    ends = "min(stream_id), max(stream_id)"
    name = table_name(Stream(table.stream, {}))

    def work(txn: Transaction) -> tuple[int | None, int | None]:
        low, high = txn.execute(f"SELECT {ends} FROM {name}").fetchone()
        return low, high

    with BlockingDatabase(dsn, INSTANCE) as database:
        low, high = database.run("look how far it is", work, read_only=True)
    return max(0, -(low or 0) if table.stream_schema.counts_down else high or 0)


def _check(txn: Transaction) -> None:
    migrations.check(txn, migrations.load())
    incarnations.confirmed(txn)  # before anything is made


def _apply_next(txn: Transaction) -> tuple[Migration, ...]:
    return migrations.apply_next(txn, migrations.load(), MigrationPhase.POST)


def _stream(spark: SparkSession, table: StreamTable) -> Stream:
    stream_schema = table.stream_schema
    known = _SYNAPSE.get(stream_schema.stream)
    if known is not None:
        types = {column.name: column.type for column in columns_of(known)}
        if all(types.get(column.name) is column.type for column in stream_schema.cells):
            return known
    row = (
        table_dataframe(spark, table)
        .agg(
            *(
                f.count_if(f.isnull(f"`{each.name}`")).alias(each.name)
                for each in stream_schema.cells
            )
        )
        .collect()[0]
    )
    words = {
        each.name: f"{each.type}{'?' if row[each.name] else ''}" for each in stream_schema.cells
    }
    return dataclasses.replace(
        declare(stream_schema.stream, words), counts_down=stream_schema.counts_down
    )
