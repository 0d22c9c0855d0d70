"""A follower: every fact of its streams, in order per writer, once its gaps are filled.

Lines go into one lane per (stream, writer). A lane deals with one thing at a
time: it asks its :class:`~synrepl.positions.gaps.Cursor` for a verdict,
fetches what is missing, hands batches to the handlers, and moves its position
only when they are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Range, Token
from synrepl.positions.gaps import Cursor, Fetch, Reset, Verdict
from synrepl.services.announce import Log
from synrepl.services.deliver import Delivery
from synrepl.services.handlers import Batch
from synrepl.storage.store import Page, Trimmed
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import BadRow, MalformedRow, RowCodec
from synrepl.wire.batching import Batch as Lines
from synrepl.wire.batching import BatchAssembler, BatchTooLarge
from synrepl.wire.closing import CloseReason, reason_and_text
from synrepl.wire.commands import Command, Position, Rdata, Replicate
from synrepl.wire.dialects import Dialect

#: The writer under which a follower of the linear view keeps its one number per stream.
LINEAR = ""

#: Rows fetched at a time when a gap is filled.
PAGE_ROWS = 2_000

#: Rows that may wait for handlers before the upstream is asked to stop, and to go on.
HIGH_WATER_ROWS = 20_000
LOW_WATER_ROWS = 5_000

_BACK_OFF_S = (0.1, 0.5, 1.0, 2.0, 5.0)


class Source(Protocol):
    """Where missing facts are fetched from: the database, or the master over HTTP."""

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Part of a range; see :meth:`synrepl.storage.store.FactStore.page`."""


class Upstream(Protocol):
    """The connection to the master."""

    @property
    def dialect(self) -> Dialect | None:
        """How it is spoken to."""

    def send(self, command: Command) -> None:
        """Say something to the master."""

    def close(self, reason: CloseReason, text: str | None = None) -> None:
        """Give the connection up; it comes back by itself."""

    def pause(self) -> None:
        """Read no more for now."""

    def resume(self) -> None:
        """Read again."""


@dataclass(slots=True)
class FollowerCounts:
    """What a follower has met, by stream."""

    rows: dict[str, int] = field(default_factory=dict)
    duplicates: dict[str, int] = field(default_factory=dict)
    gaps: dict[str, int] = field(default_factory=dict)
    fetched_rows: dict[str, int] = field(default_factory=dict)
    bad_rows: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    resets: dict[str, int] = field(default_factory=dict)


class Follower:
    """Follows a master over one connection at a time.

    :param source: where gaps are filled from, in dialects that do not fill them in band
    :param delivery: the handlers, and the record of positions
    :param streams: names of streams to follow; None for all
    :param earliest: where a stream without a position on record begins: True for
        its beginning, False for wherever it is now
    :param foreign: the master is a real Synapse, which repeats and reorders the
        rows of unordered streams
    """

    def __init__(
        self,
        scheduler: Scheduler,
        catalogue: Catalogue,
        source: Source,
        delivery: Delivery,
        log: Log,
        streams: Collection[str] | None = None,
        earliest: bool = True,
        foreign: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._catalogue = catalogue
        self._source = source
        self._delivery = delivery
        self._log = log
        self._streams = None if streams is None else frozenset(streams)
        self._earliest = earliest
        self._foreign = foreign
        self._codecs = {stream.name: RowCodec(stream) for stream in catalogue}
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._assembler = BatchAssembler()
        self._upstream: Upstream | None = None
        self._waiting_rows = 0
        self._paused = False
        self.counts = FollowerCounts()

    # -- the connection ---------------------------------------------------------------

    def connected(self, upstream: Upstream) -> None:
        """A connection was made: ask for data."""
        self._upstream = upstream
        self._assembler = BatchAssembler()
        dialect = upstream.dialect
        if dialect is None or dialect.per_writer:
            upstream.send(Replicate())
        else:
            self._ask_linear(upstream)

    def disconnected(self) -> None:
        """The connection is lost; what was not dealt with will be fetched on the next one."""
        self._upstream = None
        self._paused = False
        for lane in self._lanes.values():
            self._waiting_rows -= lane.rows
            lane.drop()
            self._enqueue(lane, _LOST)

    def received(self, commands: Iterable[Command]) -> None:
        """Lines from the master, in order."""
        try:
            self._sort(commands)
        except BatchTooLarge as error:
            if self._upstream is not None:
                self._upstream.close(*reason_and_text(error))
        self._start_touched()
        self._throttle()

    def _sort(self, commands: Iterable[Command]) -> None:
        """Put lines into their lanes."""
        add = self._assembler.add
        lane: _Lane | None = None
        stream: str | None = None
        writer: str | None = None
        for command in commands:
            if type(command) is Rdata:
                lines = add(command)
                if lines is None:
                    continue
                if lane is None or command.stream != stream or command.writer != writer:
                    stream, writer = command.stream, command.writer
                    lane = self._lane(stream, writer or LINEAR)
                if lane is not None:
                    rows = len(lines.rows)
                    lane.inbox.append(lines)
                    lane.rows += rows
                    lane.touched = True
                    self._waiting_rows += rows
                    if lines.token > lane.heard:
                        lane.heard = lines.token
            elif type(command) is Position:
                self._assembler.reset(command)
                stream, writer = command.stream, command.writer
                lane = self._lane(stream, writer or LINEAR)
                if lane is not None:
                    lane.inbox.append(command)
                    lane.touched = True
                    lane.heard = command.new
            else:
                self._delivery.command(command)

    @property
    def positions(self) -> Mapping[tuple[str, str], Token]:
        """The follower's position by (stream, writer), where known."""
        return {
            key: lane.cursor.position
            for key, lane in self._lanes.items()
            if lane.cursor.position is not None
        }

    @property
    def heard(self) -> Mapping[tuple[str, str], Token]:
        """How far each writer is said to be, by (stream, writer)."""
        return {key: lane.heard for key, lane in self._lanes.items()}

    @property
    def waiting_rows(self) -> int:
        """Rows received and not yet dealt with."""
        return self._waiting_rows

    # -- asking ---------------------------------------------------------------------------

    def _ask_linear(self, upstream: Upstream) -> None:
        """A legacy server must be asked stream by stream, and refuses one that it does not have."""
        wanted = self._streams
        known = {stream for stream, writer in self._delivery.recorded if writer == LINEAR}
        known |= {stream for stream, writer in self._lanes if writer == LINEAR}
        if wanted is None and not known:
            upstream.send(Replicate("ALL", 0 if self._earliest else None))
            return
        for name in sorted(known if wanted is None else wanted):
            lane = self._lane(name, LINEAR)
            if lane is not None:
                self._enqueue(lane, _ASK)

    def _lane(self, stream_name: str, writer: str) -> _Lane | None:
        lane = self._lanes.get((stream_name, writer))
        if lane is not None:
            return lane
        if self._streams is not None and stream_name not in self._streams:
            return None
        if stream_name not in self._catalogue:
            if _count(self.counts.unknown, stream_name) == 1:
                self._log.warn("rows of unknown stream {stream} are ignored", stream=stream_name)
            return None
        stream = self._catalogue[stream_name]
        recorded = self._delivery.recorded.get((stream_name, writer))
        start = recorded if recorded is not None else (0 if self._earliest else None)
        unordered = stream.unordered and self._foreign
        cursor = Cursor(start, unordered=unordered, in_memory=stream.in_memory)
        if writer == LINEAR:
            cursor.subscribed()
        lane = self._lanes[stream_name, writer] = _Lane(
            stream, writer, cursor, self._codecs[stream_name], ordered=not unordered
        )
        return lane

    # -- lanes ---------------------------------------------------------------------------

    def _enqueue(self, lane: _Lane, item: _Item) -> None:
        lane.inbox.append(item)
        lane.touched = True
        self._start_touched()

    def _start_touched(self) -> None:
        for lane in self._lanes.values():
            if lane.touched:
                lane.touched = False
                if not lane.busy:
                    lane.busy = True
                    self._scheduler.spawn(f"follow {lane.stream.name}", self._run(lane))

    async def _run(self, lane: _Lane) -> None:
        try:
            while lane.inbox:
                item = lane.inbox[0]
                if isinstance(item, Lines):
                    await self._take_facts(lane)
                elif isinstance(item, Position):
                    lane.inbox.popleft()
                    await self._take_position(lane, item)
                elif item is _LOST:
                    lane.inbox.popleft()
                    lane.half = None
                    lane.cursor.connection_lost()
                else:
                    lane.inbox.popleft()
                    if self._upstream is not None:
                        ask = Replicate(lane.stream.name, lane.cursor.subscribed())
                        self._upstream.send(ask)
        except MalformedRow as error:
            lane.drop()
            if self._upstream is not None:
                self._upstream.close(CloseReason.PROTOCOL_ERROR, str(error))
        finally:
            lane.busy = False

    async def _take_facts(self, lane: _Lane) -> None:
        """Take the facts at the front of the inbox, as one batch."""
        cursor, inbox, decode = lane.cursor, lane.inbox, lane.decode
        facts: list[Fact] = [] if lane.half is None else [lane.half]
        last, ordered, writer = cursor.position, lane.ordered, lane.writer
        upto, rows = facts[0].token if facts else 0, 0
        try:
            while inbox and rows < PAGE_ROWS:
                lines = inbox[0]
                if not isinstance(lines, Lines):
                    break
                inbox.popleft()
                token, raw = lines
                rows += len(raw)
                if not facts or token <= upto:  # what is above an applied fact is applied too
                    verdict = cursor.on_rdata(token)
                    if verdict is Verdict.APPLY and facts and ordered:
                        # A legacy catch-up repeats the token for each row of a fact.
                        more = writer == LINEAR and token == upto
                        verdict = Verdict.APPLY if more else Verdict.DUPLICATE
                    if verdict is not Verdict.APPLY:
                        if verdict is Verdict.DUPLICATE:
                            _count(self.counts.duplicates, lane.stream.name, len(raw))
                        continue
                try:
                    decoded = (decode(raw[0]),) if len(raw) == 1 else tuple(map(decode, raw))
                except BadRow:
                    decoded = self._decode_good(lane, raw)
                if facts and token == upto and ordered:
                    decoded = (*facts.pop().rows, *decoded)
                facts.append(Fact(token, writer, decoded))
                upto = token
        finally:
            lane.rows -= rows
            self._waiting_rows -= rows
        if facts:
            tokens = [fact.token for fact in facts]
            # In a legacy run more rows of the last fact may come.
            lane.half = facts.pop() if cursor.running and ordered else None
            if facts:
                await self._deliver(lane, facts, last)
            cursor.all_applied(tokens)
            self._delivery.moved(lane.key, cursor.position)
        self._throttle()

    async def _take_position(self, lane: _Lane, command: Position) -> None:
        if lane.half is not None:
            half, lane.half = lane.half, None
            await self._deliver(lane, [half], lane.cursor.position)
        verdict = lane.cursor.on_position(command.prev, command.new)
        if isinstance(verdict, Reset):
            _count(self.counts.resets, lane.stream.name)
            await self._delivery.reset(lane.stream.name, lane.writer, verdict.span.upto)
            await self._fetch(lane, verdict.span)
        elif isinstance(verdict, Fetch):
            _count(self.counts.gaps, lane.stream.name)
            if lane.writer == LINEAR:
                # All that a line can carry has come before it, in order.
                lane.cursor.caught_up(command.new)
            else:
                await self._fetch(lane, verdict.span)
        self._delivery.moved(lane.key, lane.cursor.position)

    async def _fetch(self, lane: _Lane, span: Range) -> None:
        """Fill a gap, page by page; what goes wrong is tried again while the gap matters."""
        after, attempt = span.after, 0
        while after < span.upto and _LOST not in lane.inbox:
            try:
                page = await self._source.page(
                    lane.stream, Range(after, span.upto), lane.writer, PAGE_ROWS
                )
            except Trimmed as error:
                self._log.warn(
                    "{stream}: {error}; starting again from there",
                    stream=lane.stream.name,
                    error=error,
                )
                _count(self.counts.resets, lane.stream.name)
                await self._delivery.reset(lane.stream.name, lane.writer, span.upto)
                after = int(str(error.facts["trimmed"]))
                lane.cursor.caught_up(after)
                continue
            except SynreplError as error:
                self._log.warn("cannot fill a gap: {error}; trying again", error=error)
                await self._scheduler.sleep(_BACK_OFF_S[min(attempt, len(_BACK_OFF_S) - 1)])
                attempt += 1
                continue
            if page.facts:
                await self._deliver(lane, page.facts, after)
                count = sum(len(fact.rows) for fact in page.facts)
                _count(self.counts.fetched_rows, lane.stream.name, count)
            after = page.upto
            lane.cursor.caught_up(after)
            self._delivery.moved(lane.key, lane.cursor.position)

    async def _deliver(self, lane: _Lane, facts: Sequence[Fact], after: Token | None) -> None:
        upto = facts[-1].token
        start = after if after is not None else facts[0].token - 1
        await self._delivery.rows(Batch(lane.stream.name, lane.writer, start, upto, facts))
        count = sum(len(fact.rows) for fact in facts)
        _count(self.counts.rows, lane.stream.name, count)

    def _decode_good(self, lane: _Lane, rows: Iterable[bytes]) -> tuple[Row, ...]:
        """The rows that are rows; the others are counted, and the first of a kind is logged."""
        good: list[Row] = []
        for row in rows:
            try:
                good.append(lane.decode(row))
            except BadRow as error:
                if _count(self.counts.bad_rows, lane.stream.name) == 1:
                    self._log.warn("{error}; such rows are ignored", error=error)
        return tuple(good)

    def _throttle(self) -> None:
        if self._upstream is None:
            return
        if not self._paused and self._waiting_rows > HIGH_WATER_ROWS:
            self._paused = True
            self._upstream.pause()
        elif self._paused and self._waiting_rows < LOW_WATER_ROWS:
            self._paused = False
            self._upstream.resume()


class _Mark(Enum):
    """Stands in an inbox for what happened to the connection there."""

    LOST = "lost"
    #: A legacy server is to be asked, from wherever the lane stands by then.
    ASK = "ask"


_LOST, _ASK = _Mark.LOST, _Mark.ASK
_Item = Lines | Position | _Mark


class _Lane:
    """What waits for one writer of one stream."""

    def __init__(
        self, stream: Stream, writer: str, cursor: Cursor, codec: RowCodec, ordered: bool
    ) -> None:
        self.ordered = ordered
        self.stream = stream
        self.writer = writer
        self.key = (stream.name, writer)
        self.cursor = cursor
        self.decode = codec.decode
        self.inbox: deque[_Item] = deque()
        self.rows = 0
        self.heard: Token = 0
        #: The last fact of a legacy run, of which more rows may come.
        self.half: Fact | None = None
        self.busy = False
        self.touched = False

    def drop(self) -> None:
        """Forget what waits."""
        self.inbox.clear()
        self.rows = 0


def _count(counts: dict[str, int], name: str, by: int = 1) -> int:
    counts[name] = counts.get(name, 0) + by
    return counts[name]
