"""Where a streaming query goes next, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql.types import StructType

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.source import place
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.pipeline.source.database.own import OwnDatabase
from synrepl.pipeline.source.database.safe_bound import SafeBound
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.errors import BatchHasStream
from synrepl.pipeline.source.failovers import check_failovers
from synrepl.pipeline.source.follower import Follower, NoFollowers
from synrepl.pipeline.source.newcomers import Newcomers
from synrepl.pipeline.source.options import SourceOptions
from synrepl.pipeline.source.part import Part
from synrepl.pipeline.source.plan.offset import Offset
from synrepl.pipeline.source.plan.plan import bounded, chunks
from synrepl.pipeline.source.streams import chosen, layout_of, not_trimmed, settled
from synrepl.positions.vector import PositionVector


class Planner:
    """Plans the batches of one query. Kept for as long as it runs: bounds need repeated looks.

    :param schema: of the rows that the query began with
    :ivar latest: what was settled at the last look
    :raises DatabaseAway: :raises NoSuchStream: :raises NoFollowers:
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._origin = open_source_database(options.dsn, "source", options.patience_s)
        self._follower: Follower | None = None
        self.latest: Offset | None = None
        self._end: Mapping[str, PositionVector] | None = None
        try:
            streams = chosen(self._origin, options)
            whole = layout_of(self._origin, options)
            self._layout = whole.fitted(schema, ", ".join(streams))
            self._newcomers = Newcomers(streams, whole, self._layout)
            if options.follower is not None:
                self._follower = _follower(self._origin, options, options.follower)
                self._follower.stay()
        except BaseException:
            self.close()
            raise

    def offset(self, value: object) -> Offset:
        """Read what this or an earlier run gave to Spark.

        :raises BadOffset: :raises OtherServer: :raises OtherVersion:
        """
        return Offset.from_json(value, self._origin.server)

    def initial(self) -> Offset:
        """Before a new query begins: nowhere.

        Spark does not keep what its first batch begins at. So that batch has no rows; it
        puts on record where the query begins, and that stays so if it has to be run again.
        """
        return self._at({})

    def fix_end(self) -> None:
        """Go no further than what is settled now; what is not is for the next run."""
        standings, _ = settled(self._origin, self._look, self._options.settle_wait_s, {})
        self._end = {stream: at.bound for stream, at in standings.items()}

    def next(self, start: Offset, rows: int | None) -> Offset:
        """The end of the batch that begins at ``start``.

        :param rows: about how many it may have; None for no limit
        :raises MustReland: :raises StreamAppeared:
        :raises NotConfirmed: :raises OlderServer: :raises ReadBeforeFailover:
        :raises PlaceMissing: the option starting does not have all streams
        """
        if self._follower is not None:
            self._follower.stay()
        standings = self._look()
        check_failovers(start, self._origin, self._options.on_failover)
        begun = self._begun(start, standings)
        goal: dict[str, PositionVector] = {}
        for stream, at in standings.items():
            if stream in begun:
                continue
            since = start.streams[stream]
            not_trimmed(stream, since, at.trimmed)
            end = at.bound if self._end is None else self._end.get(stream, since)
            goal[stream] = since.merge(end)
        if rows is not None:
            goal = bounded(self._origin, start.streams, goal, rows)
        # A stream that is no longer asked for keeps its place.
        return self._at({**start.streams, **goal, **begun})

    def parts(self, start: Offset, end: Offset) -> Iterator[Part]:
        """What lies between two positions.

        :raises MustReland: facts of it are gone
        :raises NotConfirmed: :raises OlderServer: :raises ReadBeforeFailover:
        :raises BatchHasStream: it was planned for other streams
        """
        moved = {
            stream: upto
            for stream, upto in end.streams.items()
            if start.streams.get(stream, upto) != upto
        }
        for stream in sorted(moved.keys() - set(self._newcomers.known)):
            raise BatchHasStream(stream=stream)
        columns = {stream: self._layout.read_of(self._origin.shape(stream)) for stream in moved}
        standings = self._origin.observe(list(moved))
        # Planned before a failover, and perhaps half of it in the sink.
        check_failovers(end, self._origin, self._options.on_failover)
        for stream, at in standings.items():
            not_trimmed(stream, start.streams[stream], at.trimmed)
        found = chunks(self._origin, start.streams, moved, columns, self._options.chunk_rows)
        for chunk in found:
            yield Part(chunk, columns[chunk.stream])

    def acknowledge(self, done: Offset) -> None:
        """Have it on record that everything up to here is in the sink."""
        if self._follower is not None:
            self._follower.acknowledge(done)

    def close(self) -> None:
        """End the connections."""
        self._origin.close()
        if self._follower is not None:
            self._follower.close()

    def _begun(
        self, start: Offset, standings: Mapping[str, SafeBound]
    ) -> Mapping[str, PositionVector]:
        """Where streams begin that the query has not had.

        It is put on record by a batch that has none of them: what is trimmed between that
        and the next is then missed, and not passed over.
        """
        new = {
            stream: place.Ends(_earliest(at), at.bound)
            for stream, at in standings.items()
            if stream not in start.streams
        }
        # Streams that come later are wanted whole.
        first = self._options.starting if not start.streams else place.Word.EARLIEST
        return place.find("starting", first, new)

    def _look(self) -> Mapping[str, SafeBound]:
        if self._options.everything:
            self._origin.refresh()
            for stream in self._origin.streams:
                self._newcomers.admit(self._origin.shape(stream))
        standings = self._origin.observe(self._newcomers.known)
        self.latest = self._at({stream: at.bound for stream, at in standings.items()})
        return standings

    def _at(self, streams: Mapping[str, PositionVector]) -> Offset:
        return Offset(self._origin.server, streams, self._origin.incarnation)


def _earliest(at: SafeBound) -> PositionVector:
    return PositionVector(linear=at.trimmed)


def _follower(origin: SourceDatabase, options: SourceOptions, name: str) -> Follower:
    if not isinstance(origin, OwnDatabase):
        raise NoFollowers()
    database = BlockingDatabase(options.dsn, f"follower {name}", options.patience_s)
    streams = None if options.everything else options.streams
    return Follower(database, name, streams, options.lease_s)
