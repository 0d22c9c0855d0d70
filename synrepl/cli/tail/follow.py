"""Follows a master for ``synrepl tail``: rows as they were sent, of any stream.

Commands are processed one at a time. While a gap is being filled, everything else waits, if
necessary in the master.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from synrepl.cli.raw_peer import NoMaster, RawFollower, RawUpstream, ask_for_all
from synrepl.cli.tail.lines import ShownRow
from synrepl.core.clock import DelayedCall, Scheduler
from synrepl.core.errors import InputError, Refused, Unavailable
from synrepl.core.retry import BackOff, Retry
from synrepl.core.tokens import Range, Token
from synrepl.positions.cursor import Cursor, CursorDecision, Fetch, Reset
from synrepl.positions.vector import PositionVector
from synrepl.services.sources import FactSource
from synrepl.storage.store import FactsLost, Trimmed
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Fact, Generation, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec
from synrepl.wire.batching import BatchAssembler
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command, Ping, Position, Rdata, Replicate
from synrepl.wire.dialects import Dialect

Key = tuple[str, str]

#: How long rows may arrive after a POSITION that is ahead of them, in seconds.
AHEAD_TIMEOUT_S = 2.0


@dataclass(slots=True)
class _Gap:
    """A range that was announced but not received."""

    span: Range
    timer: DelayedCall


class UnfilledGaps:
    """Reports gaps after a delay: real servers announce positions before they send the rows.

    :param notify: prints a sentence
    """

    def __init__(self, scheduler: Scheduler, notify: Callable[[str], object]) -> None:
        self._scheduler = scheduler
        self._notify = notify
        self._open: dict[Key, _Gap] = {}

    def opened(self, key: Key, span: Range) -> None:
        """Record that a POSITION is ahead of the rows received."""
        gap = self._open.get(key)
        if gap is None:
            timer = self._scheduler.callLater(AHEAD_TIMEOUT_S, self._expired, key)
            self._open[key] = _Gap(span, timer)
        else:
            gap.span = Range(gap.span.after, span.upto)

    def row(self, key: Key, token: Token) -> None:
        """Close the gap of a row's stream and writer; report what lies before the row."""
        gap = self._open.pop(key, None)
        if gap is None:
            return
        gap.timer.cancel()
        self._report(key, Range(gap.span.after, min(token - 1, gap.span.upto)))

    def connection_lost(self) -> None:
        """Report all open gaps: their rows will not arrive any more."""
        for key, gap in list(self._open.items()):
            gap.timer.cancel()
            self._report(key, gap.span)
        self._open.clear()

    def _expired(self, key: Key) -> None:
        self._report(key, self._open.pop(key).span)

    def _report(self, key: Key, span: Range) -> None:
        stream, writer = key
        if not span.empty:
            self._notify(
                f"missed: {stream} of {writer}, above {span.after} up to {span.upto};"
                " it could be fetched with a configuration (-c) that has the stream"
                " and the master's HTTP listener"
            )


#: How long to wait for a master's greeting and its POSITIONs, in seconds.
ANNOUNCE_TIMEOUT_S = 2.0

#: POSITIONs of this many streams at once are taken as the answer to somebody's REPLICATE.
FULL_ROUND_STREAMS = 3

#: Rows fetched at a time when a gap is filled.
PAGE_ROWS = 2_000

#: Delays between attempts to connect or to fetch rows.
_BACK_OFF = BackOff(0.5, 30.0)


class NotAMaster(Refused):
    """{where} does not speak as a master does ({reason}); a listener for followers is needed here, not the HTTP one"""


class NotAnnounced(InputError):
    """the master at {where} announces no stream {stream!r}{hint}; one that nobody has written yet is waited for with a configuration (-c) that has it"""


#: Shows rows and commands; returns False to stop following.
Show = Callable[[Sequence[ShownRow | Command]], Awaitable[bool]]


class Tail:
    """Follows until ``show`` returns False.

    :param connect: connects in a dialect
    :param catalogue: the known streams; rows of unknown streams are shown, too
    :param streams: the streams to show; empty for all
    :param start: the position to start after; None for new rows only
    :param foreign: whether the master may be a real Synapse, which repeats and reorders some
        streams' rows
    :param source: where missed rows are fetched, in dialects whose masters do not send them; None
        if nowhere
    :param rows: the generation of row shapes that the master sends and fetched rows are shown in
    :param notify: prints a sentence about connections and gaps
    """

    def __init__(
        self,
        scheduler: Scheduler,
        connect: Callable[[Dialect], Awaitable[RawUpstream]],
        dialect: Dialect,
        catalogue: Catalogue,
        streams: Collection[str],
        start: PositionVector | None,
        foreign: bool,
        source: FactSource | None,
        rows: Generation,
        show: Show,
        notify: Callable[[str], object],
    ) -> None:
        self._scheduler = scheduler
        self._connect = connect
        self._dialect = dialect
        self._catalogue = catalogue
        self._streams = tuple(dict.fromkeys(streams))
        self._start = start
        self._foreign = foreign
        self._source = source
        self._rows = rows
        self._show = show
        self._notify = notify
        self._cursors: dict[tuple[str, str], Cursor] = {}
        self._gaps = UnfilledGaps(scheduler, notify)
        self._encoders: dict[str, Callable[[Row], bytes]] = {}
        self._announced: set[str] = set()
        self._refusal: NotAnnounced | None = None
        self._assembler = BatchAssembler()
        self._check: DelayedCall | None = None
        #: Whether a connection has ever reached a master.
        self._had_master = False

    async def run(self) -> None:
        """Follow, and reconnect when the connection is lost.

        :raises NoMaster: the first connection could not be made
        :raises NotAMaster: :raises NotAnnounced: :raises MasterRefuses:
        :raises ConnectionRefused: a new connection would fail in the same way
        """
        await RawFollower(self._scheduler, self._connect, [self._dialect], _BACK_OFF, self).run()

    # -- RawListener ---------------------------------------------------------------------

    def unreachable(self, error: NoMaster) -> None:
        """Fail, unless a master was reached before."""
        if not self._had_master:
            raise error
        self._notify(f"{error}; trying again")

    def connected(self, upstream: RawUpstream) -> None:
        """Subscribe, and check later whether the streams were announced."""
        if self._had_master:
            self._notify(f"connected to {upstream.address} again")
        self._ask(upstream)
        self._check = self._scheduler.callLater(ANNOUNCE_TIMEOUT_S, self._report_silence, upstream)

    def disconnected(self) -> None:
        """Reset what belongs to the connection: batches, announcements and gaps."""
        if self._check is not None and self._check.active():
            self._check.cancel()
        self._announced.clear()
        self._assembler.clear()
        self._gaps.connection_lost()
        for cursor in self._cursors.values():
            cursor.connection_lost()

    def dialect_understood(self, upstream: RawUpstream) -> bool:
        """Whether the other side was a master.

        :raises SynreplError: as :meth:`run`
        """
        refusal = self._refusal or upstream.refusal()
        if refusal is not None:
            raise refusal
        if upstream.has_greeted:
            self._had_master = True
        elif not self._had_master:
            raise NotAMaster(where=upstream.address, reason=upstream.reason)
        self._notify(f"connection lost: {upstream.reason}; connecting again")
        return upstream.has_greeted

    def _ask(self, peer: RawUpstream) -> None:
        known = [stream for stream, _ in self._cursors]
        if self._dialect.per_writer or not (self._streams or known):
            start = None if self._start is None else self._start.linear
            peer.send(ask_for_all(self._dialect, start))
            return
        for stream in self._streams or known:
            peer.send(Replicate(stream, self._cursor(stream, None).subscribed()))

    async def received(self, upstream: RawUpstream, commands: Sequence[Command]) -> bool:
        """Show rows, and fill the gaps that POSITIONs reveal."""
        shown: list[ShownRow | Command] = []
        announced = {command.stream for command in commands if isinstance(command, Position)}
        is_full_round = len(announced) >= FULL_ROUND_STREAMS and self._dialect.has_sides
        for command in commands:
            if isinstance(command, Rdata):
                shown += self._new_rows(command)
            elif isinstance(command, Position):
                self._announced.add(command.stream)
                if not self._wants(command.stream):
                    continue
                shown.append(command)
                was_connected = self._cursor(command.stream, command.writer).is_connected
                missing = self._moved(command)
                if missing is not None:
                    if not await self._show(shown):
                        return False
                    shown = []
                    rows_may_follow = is_full_round and was_connected
                    if not await self._fill(upstream, command, missing, rows_may_follow):
                        return False
            elif not isinstance(command, Ping):
                shown.append(command)
        return await self._show(shown)

    def _new_rows(self, rdata: Rdata) -> list[ShownRow]:
        if not self._wants(rdata.stream):
            return []
        batch = self._assembler.add(rdata)
        if batch is None:
            return []
        cursor = self._cursor(rdata.stream, rdata.writer)
        if not cursor.is_connected and rdata.stream in self._announced and self._dialect.per_writer:
            # The writer appeared after the streams were announced, so it started at 0.
            cursor.on_position(0, 0)
        if cursor.on_rdata(batch.token) is not CursorDecision.APPLY:
            return []
        cursor.applied(batch.token)
        self._gaps.row((rdata.stream, rdata.writer or ""), batch.token)
        return [ShownRow(rdata.stream, rdata.writer, batch.token, row) for row in batch.rows]

    def _moved(self, position: Position) -> Range | None:
        """Record a POSITION; return the missing range, if any."""
        self._assembler.reset(position)
        cursor = self._cursor(position.stream, position.writer)
        verdict = cursor.on_position(position.prev, position.new)
        return verdict.span if isinstance(verdict, (Fetch, Reset)) else None

    async def _fill(
        self, peer: RawUpstream, position: Position, span: Range, rows_may_follow: bool
    ) -> bool:
        """Fetch and show the range that a POSITION skips, or report it as missed.

        :param rows_may_follow: all positions were announced on an established TCP connection, as
            real servers do whenever anybody asks; the rows either follow, or do not exist
        :returns: as :data:`Show`
        """
        stream, writer = position.stream, position.writer
        cursor = self._cursor(stream, writer)
        if writer is None:
            peer.send(Replicate(stream, cursor.subscribed()))
            return True
        known = self._known(stream)
        if self._source is not None and known is not None:
            return await self._fetch(self._source, known, writer, cursor, span)
        cursor.skip(span.upto)
        if not rows_may_follow:
            self._gaps.opened((stream, writer), span)
        return True

    async def _fetch(
        self, source: FactSource, stream: Stream, writer: str, cursor: Cursor, span: Range
    ) -> bool:
        after, upto = span.after, span.upto
        retry = Retry(_BACK_OFF, self._scheduler.random)
        while after < span.upto:
            try:
                page = await source.page(stream, Range(after, upto), writer, PAGE_ROWS)
            except FactsLost as error:
                self._notify(str(error))
                upto = error.floor - 1  # the rest of the page is shown first
                continue
            except Trimmed as error:
                self._notify(str(error))
                after = int(str(error.facts["trimmed"]))
            except Unavailable as error:
                self._notify(f"{error}; trying again")
                await self._scheduler.sleep(retry.failed())
            else:
                if not await self._show(self._fetched(stream, writer, page.facts)):
                    return False
                retry.succeeded()
                after = page.upto
                upto = span.upto if after >= upto else upto
            cursor.caught_up(after)
        return True

    def _fetched(self, stream: Stream, writer: str, facts: Sequence[Fact]) -> list[ShownRow]:
        encode = self._encoders.get(stream.name)
        if encode is None:
            encode = self._encoders[stream.name] = RowCodec(stream).encoder(self._rows)
        return [
            ShownRow(stream.name, writer, fact.token, encode(row))
            for fact in facts
            for row in fact.rows
        ]

    def _cursor(self, stream: str, writer: str | None) -> Cursor:
        key = stream, writer or ""
        cursor = self._cursors.get(key)
        if cursor is None:
            start = None
            if self._start is not None:
                start = self._start.linear if writer is None else self._start[writer]
            known = self._known(stream)
            cursor = self._cursors[key] = Cursor(
                start,
                unordered=known is not None and known.unordered and self._foreign,
                in_memory=known is not None and known.in_memory,
                every_row=True,
            )
            if writer is None:
                cursor.subscribed()  # it was subscribed to by ALL
        return cursor

    def _known(self, stream: str) -> Stream | None:
        if stream not in self._catalogue:
            return None
        return self._catalogue[stream]

    def _wants(self, stream: str) -> bool:
        return not self._streams or stream in self._streams

    def _report_silence(self, peer: RawUpstream) -> None:
        if not peer.has_greeted:
            self._notify(
                f"nothing was heard from {peer.address} yet; is it a listener for followers?"
            )
            return
        for stream in self._streams:
            if stream in self._announced:
                continue
            if self._announced and self._dialect.has_sides and stream not in self._catalogue:
                near = difflib.get_close_matches(stream, self._announced)
                hint = f"; did you mean {' or '.join(near)}?" if near else ""
                self._refusal = NotAnnounced(where=peer.address, stream=stream, hint=hint)
                peer.close(CloseReason.LOCAL)
                return
            self._notify(f"the master has not announced a stream {stream!r}; waiting for it")
