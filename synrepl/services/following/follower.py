"""Follows a master: delivers every fact of its streams, in order per writer, with gaps filled.

The follower owns the connection and routes its lines to one :class:`~.lane.Lane` per
(stream, writer), which processes them. It stops reading while too many rows wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from synrepl.core.clock import DelayedCall, Scheduler
from synrepl.core.errors import Refused
from synrepl.core.log import Logger
from synrepl.core.tokens import Token
from synrepl.positions.cursor import Cursor
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower_context import (
    ConnectionEvent,
    FollowerContext,
    FollowerCounts,
    Item,
    tally,
)
from synrepl.services.following.lane import Lane
from synrepl.services.following.possible_tokens import PossibleTokens
from synrepl.services.sizes import DEFAULT_SIZES, Sizes
from synrepl.services.sources import LINEAR, FactSource
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Generation, numbered_together
from synrepl.streams.rows import RowCodec
from synrepl.wire.batching import BatchAssembler, BatchTooLarge
from synrepl.wire.closing import CloseReason, reason_and_text
from synrepl.wire.commands import Command, Error, Ping, Position, Rdata, Replicate, Server
from synrepl.wire.dialects import Dialect

#: Maximum number of writers per stream, and of unknown streams counted by name. The names come from
#: the peer, which may be any process that can publish on the Redis.
MAX_WRITERS = 1_000
MAX_UNKNOWN = 100

#: Key of all further unknown streams in the counts.
OTHERS = "(others)"

#: How long a master may take to announce the wanted streams, in seconds.
ANNOUNCE_TIMEOUT_S = 10.0

#: Commands that concern only the connection.
_CONNECTION_COMMANDS = frozenset({Server, Ping, Error})


class TooManyWriters(Refused):
    """stream {stream!r} has more than {limit} writers; rows of further ones are ignored: remove writers that are no longer used with 'synrepl writers remove'"""


class Upstream(Protocol):
    """The connection to the master."""

    @property
    def dialect(self) -> Dialect | None:
        """The dialect of the connection; None before it is known."""

    def send(self, command: Command) -> None:
        """Send a command to the master."""

    async def room(self) -> bool | None:
        """Wait until the connection accepts more; False when it is lost."""

    def close(self, reason: CloseReason, text: str | None = None) -> None:
        """Close the connection; it reconnects by itself."""

    def pause(self) -> None:
        """Stop reading for now."""

    def resume(self) -> None:
        """Resume reading."""


class Follower:
    """Follows a master over one connection at a time.

    :param source: where gaps are filled from, in dialects that do not fill them in band
    :param delivery: delivers to the handlers, and records positions
    :param streams: names of streams to follow; None for all
    :param earliest: where a stream without a recorded position starts: True for its oldest
        fact, False for its current position
    :param foreign: the master is a real Synapse, which repeats and reorders the
        rows of unordered streams
    :param wanted: names of streams that were configured by name; those that the master does
        not announce are logged, since nothing else would show it
    :param tokens: knows which tokens can have been given out; None to accept all
    :ivar counts: rows, gaps and so on since the process started
    """

    def __init__(
        self,
        scheduler: Scheduler,
        catalogue: Catalogue,
        source: FactSource,
        delivery: Delivery,
        log: Logger,
        streams: Collection[str] | None = None,
        earliest: bool = True,
        foreign: bool = False,
        wanted: Collection[str] = (),
        tokens: PossibleTokens | None = None,
        sizes: Sizes = DEFAULT_SIZES,
    ) -> None:
        self._sizes = sizes
        self._scheduler = scheduler
        self._unannounced = set(wanted)
        self._announce_timer: DelayedCall | None = None
        self._catalogue = catalogue
        self._delivery = delivery
        self._log = log
        self._streams = None if streams is None else frozenset(streams)
        self._earliest = earliest
        self._foreign = foreign
        # Streams that share a sequence; a real server reads each from a table of its own.
        self._numbered_together = numbered_together(catalogue)
        self._codecs = {stream.name: RowCodec(stream) for stream in catalogue}
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._writers: Counter[str] = Counter()
        self._assembler = BatchAssembler()
        #: Batches interrupted by a POSITION: the rows that still arrive are incomplete, so the
        #: whole batch is fetched.
        self._interrupted: set[tuple[str, str | None]] = set()
        self._has_multiple_speakers = self._is_lossless = False
        self._upstream: Upstream | None = None
        self._waiting_rows = 0
        self._paused = False
        self.counts = FollowerCounts()
        self.tokens = PossibleTokens(scheduler, None, log) if tokens is None else tokens
        self._context = FollowerContext(
            scheduler,
            source,
            delivery,
            log,
            self.counts,
            self.tokens,
            self._consumed,
            self._send,
            self._close,
            sizes.page_rows,
        )

    # -- the connection ----------------------------------------------------------------

    def connected(self, upstream: Upstream) -> None:
        """Subscribe on a new connection."""
        self._upstream = upstream
        self._assembler = BatchAssembler()
        self._interrupted.clear()
        dialect = upstream.dialect
        # On a bus a master announces writers that it takes for dead, rightly or not.
        on_bus = dialect is not None and not dialect.has_sides
        self._has_multiple_speakers = on_bus and not self._foreign
        self._is_lossless = self._foreign and not on_bus
        for lane in self._lanes.values():
            self._set_connection_flags(lane)
        if dialect is None or dialect.per_writer:
            upstream.send(Replicate())
            if self._unannounced:
                self._announce_timer = self._scheduler.callLater(
                    ANNOUNCE_TIMEOUT_S, self._warn_unannounced
                )
        else:
            self._subscribe_linear(upstream)

    def resubscribe(self) -> None:
        """Ask the master for all positions again, as one may have been refused wrongly."""
        upstream = self._upstream
        if upstream is None:
            return
        if upstream.dialect is None or upstream.dialect.per_writer:
            upstream.send(Replicate())
        else:  # a legacy server answers only the first subscription of a connection
            upstream.close(CloseReason.LOCAL)

    def disconnected(self) -> None:
        """Drop what was not processed; it is fetched again on the next connection."""
        self._upstream = None
        self._paused = False
        if self._announce_timer is not None and self._announce_timer.active():
            self._announce_timer.cancel()
        for lane in self._lanes.values():
            self._waiting_rows -= lane.rows
            lane.clear()
            self._enqueue(lane, ConnectionEvent.LOST)

    def received(self, commands: Iterable[Command]) -> None:
        """Process lines from the master, in order."""
        try:
            self._route(commands)
        except BatchTooLarge as error:
            reason, text = reason_and_text(error)
            self._close(reason, text)
        self._run_lanes()
        self._throttle()

    def _route(self, commands: Iterable[Command]) -> None:
        """Put each line into the inbox of its lane."""
        add = self._assembler.add
        lane: Lane | None = None
        stream: str | None = None
        writer: str | None = None
        for command in commands:
            if type(command) is Rdata:
                lines = add(command)
                if lines is None:
                    continue
                if self._interrupted and self._is_interrupted(command):
                    command = Position(command.stream, command.writer, lines.token, lines.token)
                    self._take_position(command)
                    continue
                if lane is None or command.stream != stream or command.writer != writer:
                    stream, writer = command.stream, command.writer
                    lane = self._lane(stream, writer or LINEAR)
                if lane is not None:
                    rows = len(lines.rows)
                    lane.inbox.append(lines)
                    lane.rows += rows
                    lane.has_new_items = True
                    self._waiting_rows += rows
                    if lines.token > lane.announced:
                        lane.announced = lines.token
            elif type(command) is Position:
                if self._assembler.reset(command) and self._has_multiple_speakers:
                    self._interrupted.add((command.stream, command.writer))
                self._take_position(command)
            elif type(command) not in _CONNECTION_COMMANDS:
                self._delivery.deliver_command(command)

    def _warn_unannounced(self) -> None:
        """Log once which wanted streams the master does not announce."""
        for name in sorted(self._unannounced):
            self._log.warn(
                "the master does not announce stream {stream}, which is followed here: no rows of it"
                " will arrive; a listener with 'rows: current' has the streams added after Synapse"
                " 1.43, and lacks those removed since",
                stream=name,
            )
        self._unannounced.clear()

    def _take_position(self, command: Position) -> None:
        self._unannounced.discard(command.stream)
        lane = self._lane(command.stream, command.writer or LINEAR)
        if lane is not None:
            lane.inbox.append(command)
            lane.rows += 1  # counts like a row
            self._waiting_rows += 1
            lane.has_new_items = True
            lane.announced = command.new

    def _is_interrupted(self, last: Rdata) -> bool:
        """Whether a POSITION interrupted the batch that this row ends, so that it must be fetched."""
        key = last.stream, last.writer
        torn = key in self._interrupted
        self._interrupted.discard(key)
        return torn

    @property
    def positions(self) -> Mapping[tuple[str, str], Token]:
        """Positions that all handlers have reached, by (stream, writer), where known."""
        return self._delivery.progress.positions

    @property
    def announced(self) -> Mapping[tuple[str, str], Token]:
        """Positions that the master has announced, by (stream, writer)."""
        return {key: lane.announced for key, lane in self._lanes.items()}

    @property
    def waiting_rows(self) -> int:
        """Rows and positions received and not processed yet."""
        return self._waiting_rows

    # -- subscribing -------------------------------------------------------------------

    def _subscribe_linear(self, upstream: Upstream) -> None:
        """Subscribe at a legacy server, which takes one stream at a time and refuses unknown ones.

        A real server lists its streams in the answer to ALL; ours has those of our catalogue.
        """
        wanted = self._streams
        if wanted is None and self._foreign:
            wanted = frozenset(
                stream for stream, writer in (*self._delivery.recorded, *self._lanes) if not writer
            )
            if not wanted:
                upstream.send(Replicate("ALL", 0 if self._earliest else None))
                return
        elif wanted is None:
            legacy = self._catalogue.known_to(Generation.LEGACY)
            wanted = frozenset(stream.name for stream in legacy)
        for name in sorted(wanted):
            lane = self._lane(name, LINEAR)
            if lane is not None:
                self._enqueue(lane, ConnectionEvent.SUBSCRIBE)

    def _lane(self, stream_name: str, writer: str) -> Lane | None:
        lane = self._lanes.get((stream_name, writer))
        if lane is not None:
            return lane
        if self._streams is not None and stream_name not in self._streams:
            return None
        if stream_name not in self._catalogue:
            self._count_unknown(stream_name)
            return None
        if self._writers[stream_name] >= MAX_WRITERS:
            error = TooManyWriters(stream=stream_name, limit=MAX_WRITERS)
            if tally(self.counts.unknown, stream_name) == 1:
                self._log.warn("{error}", error=error)
            return None
        self._writers[stream_name] += 1
        stream = self._catalogue[stream_name]
        start = self._delivery.open_lane((stream_name, writer), self._earliest)
        unordered = stream.unordered and self._foreign
        cursor = Cursor(
            start,
            unordered=unordered,
            in_memory=stream.in_memory,
            mixed=self._foreign and stream_name in self._numbered_together,
        )
        if writer == LINEAR:
            cursor.subscribed()
        lane = self._lanes[stream_name, writer] = Lane(
            stream, writer, cursor, self._codecs[stream_name], self._context, self._foreign
        )
        self._set_connection_flags(lane)
        return lane

    def _set_connection_flags(self, lane: Lane) -> None:
        lane.has_multiple_speakers = self._has_multiple_speakers and not lane.stream.in_memory
        lane.is_lossless = self._is_lossless

    def _count_unknown(self, stream_name: str) -> None:
        unknown = self.counts.unknown
        if stream_name not in unknown and len(unknown) >= MAX_UNKNOWN:
            tally(unknown, OTHERS)
        elif tally(unknown, stream_name) == 1:
            self._log.warn("rows of unknown stream {stream} are ignored", stream=stream_name)

    # -- lanes -------------------------------------------------------------------------

    def _enqueue(self, lane: Lane, item: Item) -> None:
        lane.inbox.append(item)
        lane.has_new_items = True
        self._run_lanes()

    def _run_lanes(self) -> None:
        for lane in self._lanes.values():
            if lane.has_new_items:
                lane.has_new_items = False
                if not lane.is_running:
                    lane.is_running = True
                    self._scheduler.spawn(f"follow {lane.stream.name}", lane.run())

    def _throttle(self) -> None:
        if self._upstream is None:
            return
        if not self._paused and self._waiting_rows > self._sizes.high_water_rows:
            self._paused = True
            self._upstream.pause()
        elif self._paused and self._waiting_rows < self._sizes.low_water_rows:
            self._paused = False
            self._upstream.resume()

    # -- callbacks of lanes ------------------------------------------------------------

    def _consumed(self, rows: int) -> None:
        self._waiting_rows -= rows
        self._throttle()

    def _send(self, command: Command) -> None:
        if self._upstream is not None:
            self._upstream.send(command)

    def _close(self, reason: CloseReason, text: str | None) -> None:
        if self._upstream is not None:
            self._upstream.close(reason, text)
