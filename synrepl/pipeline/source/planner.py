"""Plans the micro-batches of a streaming query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql.types import StructType

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.source import position_option
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.pipeline.source.errors import BatchHasStream, ReadBeyondDatabase
from synrepl.pipeline.source.failover_check import check_failovers
from synrepl.pipeline.source.given_out_check import in_words, streams_set_back
from synrepl.pipeline.source.options import SourceOptions
from synrepl.pipeline.source.partition import ChunkPartition
from synrepl.pipeline.source.plan.chunks import limit_rows, plan_chunks
from synrepl.pipeline.source.plan.offset import Offset
from synrepl.pipeline.source.query_follower import NoFollowers, QueryFollower
from synrepl.pipeline.source.streams import (
    AdmittedStreams,
    chunk_rows,
    observe_until_settled,
    read_schema_of,
    require_not_trimmed,
    selected_streams,
    streams_of_facts,
)
from synrepl.positions.vector import PositionVector
from synrepl.storage.foreign.bounds import SafeBound


class Planner:
    """Plans the batches of one query. Keep one object per query, because safe bounds need repeated observations.

    :param schema: the Spark schema that the query was started with
    :ivar latest: what was settled at the last observation
    :raises DatabaseAway: :raises NoSuchStream: :raises NoFollowers:
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._source = open_source_database(options.dsn, "source", options.patience_s)
        self._follower: QueryFollower | None = None
        self.latest: Offset | None = None
        self._end: Mapping[str, PositionVector] | None = None
        try:
            streams = selected_streams(self._source, options)
            whole = read_schema_of(self._source, options)
            self._read_schema = whole.fitted(schema, ", ".join(streams))
            self._admitted = AdmittedStreams(streams, whole, self._read_schema)
            if options.follower is not None:
                self._follower = _follower(self._source, options, options.follower)
                self._follower.renew_lease()
        except BaseException:
            self.close()
            raise

    def offset(self, value: object) -> Offset:
        """Parse an offset that this or an earlier run gave to Spark.

        :raises BadOffset: :raises OtherServer: :raises OtherVersion:
        """
        return Offset.from_json(value, self._source.server)

    def initial(self) -> Offset:
        """The offset of a new query: it has no positions.

        Spark does not store where the first batch begins. So the first batch has no rows; its end
        records where the query begins, and stays the same if the batch is run again.
        """
        return self._at({})

    def fix_end(self) -> None:
        """End this run at what is settled now (after a bounded wait); the next run reads the rest."""
        bounds, _ = observe_until_settled(
            self._source, self._observe, self._options.settle_wait_s, {}
        )
        self._end = {stream: at.bound for stream, at in bounds.items()}

    def next(self, start: Offset, rows: int | None) -> Offset:
        """The end offset of the batch that begins at ``start``.

        :param rows: approximate maximum number of rows; None for no limit
        :raises MustReland: :raises StreamAppeared:
        :raises NotConfirmed: :raises OlderServer: :raises ReadBeforeFailover: :raises ReadBeyondDatabase:
        :raises PositionMissing: the option ``starting`` lacks a stream
        """
        if self._follower is not None:
            self._follower.renew_lease()
        bounds = self._observe()
        check_failovers(start, self._source, self._options.on_failover)
        _check_given_out(start, bounds, self._source)
        begun = self._begun(start, bounds)
        goal: dict[str, PositionVector] = {}
        for stream, at in bounds.items():
            if stream in begun:
                continue
            since = start.streams[stream]
            require_not_trimmed(stream, since, at.trimmed)
            end = at.bound if self._end is None else self._end.get(stream, since)
            goal[stream] = since.merge(end)
        if rows is not None:
            share = rows // max(1, len(goal))
            goal = limit_rows(self._source, start.streams, goal, share).ends
        # A stream that is no longer requested keeps its position.
        return self._at({**start.streams, **goal, **begun})

    def parts(self, start: Offset, end: Offset) -> Iterator[ChunkPartition]:
        """The partitions of the batch between two offsets.

        :raises MustReland: facts of it have been trimmed
        :raises NotConfirmed: :raises OlderServer: :raises ReadBeforeFailover: :raises ReadBeyondDatabase:
        :raises BatchHasStream: the batch was planned for a stream that is no longer requested
        """
        moved = {
            stream: upto
            for stream, upto in end.streams.items()
            if start.streams.get(stream, upto) != upto
        }
        for stream in sorted(moved.keys() - set(self._admitted.known)):
            raise BatchHasStream(stream=stream)
        columns = {
            stream: self._read_schema.read_of(self._source.stream_schema(stream))
            for stream in moved
        }
        bounds = self._source.observe(list(moved))
        # It may have been planned before a failover, and be partly in the sink.
        check_failovers(end, self._source, self._options.on_failover)
        _check_given_out(end, bounds, self._source)
        for stream, at in bounds.items():
            require_not_trimmed(stream, start.streams[stream], at.trimmed)
        options, begun = self._options, start.streams
        rows = chunk_rows(options, self._source, begun, moved)
        found = plan_chunks(self._source, begun, moved, columns, rows, options.where)
        for chunk in found:
            yield ChunkPartition(chunk, columns[chunk.stream])

    def acknowledge(self, done: Offset) -> None:
        """Record, for a named follower, that everything up to here is in the sink."""
        if self._follower is not None:
            self._follower.acknowledge(done)

    def close(self) -> None:
        """Close the connections."""
        self._source.close()
        if self._follower is not None:
            self._follower.close()

    def _begun(
        self, start: Offset, bounds: Mapping[str, SafeBound]
    ) -> Mapping[str, PositionVector]:
        """The starting positions of streams that are new to the query.

        A batch without rows of these streams records them. So facts that are trimmed before the
        next batch are noticed as missing, and not skipped silently.
        """
        new = {
            stream: position_option.PositionRange(_earliest(at), at.bound)
            for stream, at in bounds.items()
            if stream not in start.streams
        }
        # Streams that are created later are read from the beginning.
        first = (
            self._options.starting if not start.streams else position_option.NamedPosition.EARLIEST
        )
        return position_option.resolve_positions("starting", first, new)

    def _observe(self) -> Mapping[str, SafeBound]:
        if self._options.all_streams:
            self._source.refresh()
            for stream in streams_of_facts(self._source):
                self._admitted.admit(self._source.stream_schema(stream))
        bounds = self._source.observe(self._admitted.known)
        self.latest = self._at({stream: at.bound for stream, at in bounds.items()})
        return bounds

    def _at(self, streams: Mapping[str, PositionVector]) -> Offset:
        return Offset(self._source.server, streams, self._source.incarnation)


def _check_given_out(
    offset: Offset, bounds: Mapping[str, SafeBound], source: SourceDatabase
) -> None:
    """Check that the database gives out no token that is at or below an offset.

    :raises ReadBeyondDatabase:
    """
    if found := streams_set_back(offset.streams, bounds, source):
        raise ReadBeyondDatabase(what=in_words(found, offset.streams))


def _earliest(at: SafeBound) -> PositionVector:
    return PositionVector(linear=at.trimmed)


def _follower(source: SourceDatabase, options: SourceOptions, name: str) -> QueryFollower:
    if not isinstance(source, SynreplDatabase):
        raise NoFollowers()
    database = BlockingDatabase(options.dsn, f"follower {name}", options.patience_s)
    streams = None if options.all_streams else options.streams
    return QueryFollower(database, name, streams, options.lease_s, source.whole_events)
