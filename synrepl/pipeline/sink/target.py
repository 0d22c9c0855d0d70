"""The target stream of a sink, and matching the columns of a DataFrame to it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import types as t

from synrepl.core.errors import InputError
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.sink.options import SinkOptions
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.pipeline.source.database.source_database import NoSuchStream
from synrepl.pipeline.source.database.stream_schema import HEAD, StreamSchema
from synrepl.pipeline.source.database.synapse_database import SynapseDatabase
from synrepl.pipeline.source.database.whole_events import BASES
from synrepl.storage import incarnations
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import KeptInMemory
from synrepl.storage.server_name import check_server
from synrepl.storage.staging import staging as staged
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.columns import KIND_COLUMN, Column, ColumnType
from synrepl.streams.synapse import SYNAPSE_STREAMS

#: The ``application_name`` of the sink's connections.
INSTANCE = "spark"


class NotWritable(InputError):
    """stream {stream!r} is in the database of a real Synapse, which is only read; write to a database of synrepl's own"""


class NotAppendable(InputError):
    """stream {stream!r} has events as the room store has them, so nothing is appended to it; append facts to stream {base!r}"""


class ColumnsMismatch(InputError):
    """the DataFrame does not fit stream {stream!r}: {reason}"""


#: Spark types that can be written to each column type; lossy values are found row by row.
_TAKES: dict[ColumnType, tuple[type[t.DataType], ...]] = {
    ColumnType.TEXT: (t.StringType,),
    ColumnType.BIGINT: (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DecimalType),
    ColumnType.BOOLEAN: (t.BooleanType,),
    ColumnType.DOUBLE: (t.FloatType, t.DoubleType, t.ByteType, t.ShortType, t.IntegerType),
    ColumnType.JSON: (t.StringType,),
    ColumnType.TEXT_ARRAY: (t.ArrayType,),
}

#: Advice for a column of another type.
_ADVICE: dict[ColumnType, str] = {
    ColumnType.TEXT: "CAST it to STRING",
    ColumnType.BIGINT: "CAST it to BIGINT",
    ColumnType.BOOLEAN: "CAST it to BOOLEAN",
    ColumnType.DOUBLE: "CAST it to DOUBLE",
    ColumnType.JSON: "give JSON text, as to_json() makes it",
    ColumnType.TEXT_ARRAY: "CAST it to ARRAY<STRING>",
}


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """The stream that rows are appended to; can be pickled for tasks.

    :ivar columns: the columns that the DataFrame has, in the order of the table
    :ivar kinds: the valid values of the column ``kind``; None for a stream without kinds
    """

    stream: str
    columns: tuple[Column, ...]
    kinds: tuple[str, ...] | None

    @property
    def cells(self) -> tuple[str, ...]:
        """The names of the stream's own columns, without the head."""
        heads = {column.name for column in HEAD}
        return tuple(column.name for column in self.columns if column.name not in heads)


def resolve_target(options: SinkOptions, schema: t.StructType) -> SinkTarget:
    """Look up the stream, and check that the rows fit it and may be written.

    Also creates the staging tables and the writer.

    :raises ColumnsMismatch: a column is unknown, missing or of another type
    :raises NoSuchStream: :raises KeptInMemory: :raises NotWritable: :raises WrongServer:
    :raises NotConfirmed: the server was promoted or restored, and is not confirmed yet
    :raises WriterTaken: :raises Drained: :raises WriterRemoved: :raises DatabaseAway:
    """
    stream_schema = _stream_schema(options)
    columns = match_columns(stream_schema, schema, options.preserve)

    def work(txn: Transaction) -> tuple[str, ...] | None:
        incarnations.confirmed(txn)  # before anything is made
        if options.server_name is not None:
            check_server(txn, options.server_name)
        staged.ensure_staging(txn, stream_schema.stream, stream_schema.cells)
        if not options.preserve:
            staged.check_writer_available(txn, stream_schema.stream, options.writer)
        tagged = any(column.name == KIND_COLUMN for column in stream_schema.cells)
        return staged.kinds(txn, stream_schema.stream) if tagged else None

    with BlockingDatabase(options.database, INSTANCE, options.patience_s) as database:
        kinds = database.run("prepare to write", work)
    return SinkTarget(stream_schema.stream, columns, kinds)


def match_columns(
    stream_schema: StreamSchema, schema: t.StructType, preserve: bool
) -> tuple[Column, ...]:
    """The columns of a stream that a DataFrame with this schema has.

    :param preserve: the DataFrame has IDs and writers, too
    :raises ColumnsMismatch:
    """
    wanted = {
        column.name: column
        for column in (stream_schema.columns if preserve else stream_schema.cells)
    }
    given: dict[str, t.StructField] = {}
    for field in schema.fields:
        if field.name in given:
            raise _mismatch(stream_schema, f"it has two columns {field.name!r}")
        given[field.name] = field
        if field.name not in wanted:
            raise _mismatch(stream_schema, _unknown(field.name, wanted))
    for column in wanted.values():
        if column.name not in given:
            if column.nullable:
                continue
            raise _mismatch(
                stream_schema, f"it lacks column {column.name!r}, which may not be NULL"
            )
        _check_type(stream_schema, column, given[column.name].dataType)
    return tuple(column for column in wanted.values() if column.name in given)


def _stream_schema(options: SinkOptions) -> StreamSchema:
    known = Catalogue(SYNAPSE_STREAMS)
    source = open_source_database(options.database, INSTANCE, options.patience_s)
    try:
        if isinstance(source, SynapseDatabase):
            raise NotWritable(stream=options.stream)
        if options.stream in source.whole_events:
            raise NotAppendable(stream=options.stream, base=BASES[options.stream])
        return source.stream_schema(options.stream)
    except NoSuchStream:
        if options.stream in known and known[options.stream].in_memory:
            raise KeptInMemory(stream=options.stream) from None
        raise
    finally:
        source.close()


def _check_type(stream_schema: StreamSchema, column: Column, found: t.DataType) -> None:
    fits = isinstance(found, _TAKES[column.type])
    if isinstance(found, t.DecimalType):
        fits = fits and found.scale == 0
    if isinstance(found, t.ArrayType):
        fits = fits and isinstance(found.elementType, t.StringType)
    if not fits:
        raise _mismatch(
            stream_schema,
            f"column {column.name!r} is {found.simpleString().upper()}, the stream's is"
            f" {column.type}; {_ADVICE[column.type]}",
        )


def _unknown(name: str, wanted: Iterable[str]) -> str:
    heads = [column.name for column in HEAD]
    if name in heads:
        return f"column {name!r} is given out by the stream; drop it, or use positions=preserve"
    near = difflib.get_close_matches(name, list(wanted), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; the stream has {', '.join(wanted)}"
    return f"the stream has no column {name!r}{hint}"


def _mismatch(stream_schema: StreamSchema, reason: str) -> ColumnsMismatch:
    return ColumnsMismatch(stream=stream_schema.stream, reason=reason)
