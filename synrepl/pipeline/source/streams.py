"""The streams that a source reads: selecting them, observing them, and admitting new ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from synrepl.pipeline.source.database.settlement import PAUSE_S, SettlementPoller, Unsettled
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.errors import MustReland, StreamAppeared
from synrepl.pipeline.source.options import BadRowsPolicy, SourceOptions
from synrepl.pipeline.source.plan.chunks import check_not_trimmed, rows_per_chunk
from synrepl.pipeline.source.read_schema import ReadSchema, combine_schemas
from synrepl.pipeline.source.where.condition import check_condition
from synrepl.positions.vector import PositionVector
from synrepl.storage.foreign.bounds import SafeBound
from synrepl.storage.store import Trimmed


def selected_streams(source: SourceDatabase, options: SourceOptions) -> Sequence[str]:
    """The names of the streams that the options select.

    :raises NoSuchStream: one of them does not exist
    """
    if options.all_streams:
        return streams_of_facts(source)
    for stream in options.streams:
        source.stream_schema(stream)
    return options.streams


def streams_of_facts(source: SourceDatabase) -> Sequence[str]:
    """All streams but those of whole events, whose rows would be facts for a second time."""
    return [stream for stream in source.streams if stream not in source.whole_events]


def read_schema_of(source: SourceDatabase, options: SourceOptions) -> ReadSchema:
    """The combined columns of these streams, limited to those that the options select.

    :raises NoSuchStream: :raises ColumnsDisagree: :raises StreamColumnTaken: :raises NoSuchColumn:
    :raises WhereMismatch: the option ``where`` does not fit them
    """
    stream_schemas = [source.stream_schema(stream) for stream in selected_streams(source, options)]
    if options.where is not None:
        check_condition(options.where, stream_schemas, options.has_stream_column)
    found = combine_schemas(stream_schemas, options.has_stream_column, options.columns)
    return found.with_bad_rows() if options.on_bad_rows is BadRowsPolicy.KEEP else found


def chunk_rows(
    options: SourceOptions,
    source: SourceDatabase,
    start: Mapping[str, PositionVector],
    end: Mapping[str, PositionVector],
) -> int:
    """The approximate number of rows that a task reads."""
    if options.partitions is None:
        return options.chunk_rows
    return rows_per_chunk(source, start, end, options.partitions, options.where)


def require_not_trimmed(stream: str, start: PositionVector, trimmed: int) -> None:
    """Refuse a start position if facts above it have been trimmed.

    :raises MustReland: facts above it have been trimmed
    """
    try:
        check_not_trimmed(stream, start, trimmed)
    except Trimmed as error:
        raise MustReland(**error.facts) from None


def observe_until_settled(
    source: SourceDatabase,
    look: Callable[[], Mapping[str, SafeBound]],
    wait_s: float,
    ending: Mapping[str, PositionVector],
) -> tuple[Mapping[str, SafeBound], Mapping[str, Unsettled]]:
    """Observe until everything to be read is settled, but no longer than ``wait_s`` seconds.

    :param look: observes the source once
    :param ending: by stream, the requested end; other streams are read up to what is allocated now
    :returns: the bounds last observed, and by stream what is not settled, of streams without a
        requested end
    """
    poller = SettlementPoller(look)
    deadline = time.monotonic() + wait_s
    while True:
        known = {stream: at.bound for stream, at in poller.bounds.items()}
        # A real Synapse's bound needs observations over some seconds. Our own is known at once, and
        # a write in flight there may stay in flight for long.
        left = poller.unsettled(known) if source.is_lossy else {}
        left = {stream: each for stream, each in left.items() if stream not in ending}
        asked = [known[stream].covers(at) for stream, at in ending.items() if stream in known]
        if (all(asked) and not left) or time.monotonic() + PAUSE_S > deadline:
            return poller.bounds, left
        time.sleep(PAUSE_S)
        poller.observe()


class AdmittedStreams:
    """The streams of a query: those it began with, and later ones that fit its columns.

    :param streams: the streams it began with
    :param whole: all their columns
    :param read: the columns that are read
    """

    def __init__(self, streams: Sequence[str], whole: ReadSchema, read: ReadSchema) -> None:
        self._known = list(streams)
        self._columns = {column.name: column for column in read.columns}
        self._all = len(read.columns) == len(whole.columns)

    @property
    def known(self) -> Sequence[str]:
        """The names of the streams admitted so far."""
        return tuple(self._known)

    def admit(self, stream_schema: StreamSchema) -> None:
        """Admit a stream, unless it has been admitted.

        :raises StreamAppeared: its rows would lose columns, or lack one that may not be null
        """
        if stream_schema.stream in self._known:
            return
        if (reason := self._misfit(stream_schema)) is not None:
            raise StreamAppeared(stream=stream_schema.stream, reason=reason)
        self._known.append(stream_schema.stream)

    def _misfit(self, stream_schema: StreamSchema) -> str | None:
        has = {column.name: column for column in stream_schema.columns}
        for column in stream_schema.cells:
            ours = self._columns.get(column.name)
            if ours is None:
                if self._all:
                    return f"its column {column.name!r} is not among them"
            elif ours.type is not column.type:
                return f"its column {column.name!r} is {column.type}, and not {ours.type}"
        for name, ours in self._columns.items():
            nullable = name not in has or has[name].nullable
            if nullable and not ours.nullable and name != "stream":
                return f"its column {name!r} may be null"
        return None
