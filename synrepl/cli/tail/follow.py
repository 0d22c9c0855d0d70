"""What ``synrepl tail`` shows: rows as they travelled, of any stream of any master.

One command is dealt with at a time, so while a gap is filled everything else waits, in the master
if need be.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Collection, Sequence

from synrepl.cli.raw_follower import RawFollower
from synrepl.cli.raw_peer import NoMaster, RawUpstream, ask_for_all
from synrepl.cli.tail.gaps import UnfilledGaps
from synrepl.cli.tail.lines import ShownRow
from synrepl.core.clock import DelayedCall, Scheduler
from synrepl.core.errors import InputError, Refused, Unavailable
from synrepl.core.retry import BackOff, Retry
from synrepl.core.tokens import Range
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

#: How long a master has to greet us and to announce what was asked for, in seconds.
ANNOUNCE_TIMEOUT_S = 2.0

#: So many streams' POSITIONs at once are an answer to REPLICATE, whoever sent that.
A_ROUND = 3

#: Rows fetched at a time when a gap is filled.
PAGE_ROWS = 2_000

#: Between attempts to connect, or to fetch rows.
_BACK_OFF = BackOff(0.5, 30.0)


class NotAMaster(Refused):
    """{where} does not speak as a master does ({reason}); a listener for followers is needed here, not the HTTP one"""


class NotAnnounced(InputError):
    """the master at {where} announces no stream {stream!r}{hint}; one that nobody has written yet is waited for with a configuration (-c) that has it"""


#: Shows rows and commands; False once enough was shown.
Show = Callable[[Sequence[ShownRow | Command]], Awaitable[bool]]


class Tail:
    """Follows until :attr:`show` has had enough.

    :param connect: makes a connection in a dialect
    :param catalogue: what is known of streams; others are shown too
    :param streams: what to show; nothing for everything
    :param start: from where; None for what happens from now on
    :param foreign: the master may be a real Synapse, which repeats and reorders some streams' rows
    :param source: for dialects whose masters do not send what was missed; None for nowhere
    :param rows: the generation of row shapes in which the master sends, and fetched rows are shown
    :param say: tells a person about connections, in a sentence
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
        say: Callable[[str], object],
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
        self._say = say
        self._cursors: dict[tuple[str, str], Cursor] = {}
        self._gaps = UnfilledGaps(scheduler, say)
        self._encoders: dict[str, Callable[[Row], bytes]] = {}
        self._announced: set[str] = set()
        self._refusal: NotAnnounced | None = None
        self._assembler = BatchAssembler()
        self._check: DelayedCall | None = None
        #: There was a connection to a master.
        self._before = False

    async def run(self) -> None:
        """Follow, over one connection after the other.

        :raises NoMaster: the first connection could not be made
        :raises NotAMaster: :raises NotAnnounced: :raises MasterRefuses:
        :raises ConnectionRefused: another try would end in the same way
        """
        await RawFollower(self._scheduler, self._connect, [self._dialect], _BACK_OFF, self).run()

    # -- for the connections: a RawListener ---------------------------------------------

    def unreachable(self, error: NoMaster) -> None:
        """Give up unless there was a master before."""
        if not self._before:
            raise error
        self._say(f"{error}; trying again")

    def connected(self, upstream: RawUpstream) -> None:
        """Ask for the streams, and look for them in a while."""
        if self._before:
            self._say(f"connected to {upstream.address} again")
        self._ask(upstream)
        self._check = self._scheduler.callLater(ANNOUNCE_TIMEOUT_S, self._tell_silence, upstream)

    def disconnected(self) -> None:
        """Nothing more comes of what has begun."""
        if self._check is not None and self._check.active():
            self._check.cancel()
        self._announced.clear()
        self._assembler.clear()
        self._gaps.connection_lost()
        for cursor in self._cursors.values():
            cursor.connection_lost()

    def understood(self, upstream: RawUpstream) -> bool:
        """Whether it was a master.

        :raises SynreplError: as :meth:`run`
        """
        refusal = self._refusal or upstream.refusal()
        if refusal is not None:
            raise refusal
        if upstream.greeted:
            self._before = True
        elif not self._before:
            raise NotAMaster(where=upstream.address, reason=upstream.reason)
        self._say(f"connection lost: {upstream.reason}; connecting again")
        return upstream.greeted

    def _ask(self, peer: RawUpstream) -> None:
        known = [stream for stream, _ in self._cursors]
        if self._dialect.per_writer or not (self._streams or known):
            start = None if self._start is None else self._start.linear
            peer.send(ask_for_all(self._dialect, start))
            return
        for stream in self._streams or known:
            peer.send(Replicate(stream, self._cursor(stream, None).subscribed()))

    async def received(self, upstream: RawUpstream, commands: Sequence[Command]) -> bool:
        """Show rows, and what is missing in front of a POSITION."""
        shown: list[ShownRow | Command] = []
        told = {command.stream for command in commands if isinstance(command, Position)}
        told_all = len(told) >= A_ROUND and self._dialect.has_sides
        for command in commands:
            if isinstance(command, Rdata):
                shown += self._new_rows(command)
            elif isinstance(command, Position):
                self._announced.add(command.stream)
                if not self._wants(command.stream):
                    continue
                shown.append(command)
                again = self._cursor(command.stream, command.writer).is_connected
                missing = self._moved(command)
                if missing is not None:
                    if not await self._show(shown):
                        return False
                    shown = []
                    if not await self._fill(upstream, command, missing, told_all and again):
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
            # A writer that came after the streams were announced: it began at 0.
            cursor.on_position(0, 0)
        if cursor.on_rdata(batch.token) is not CursorDecision.APPLY:
            return []
        cursor.applied(batch.token)
        self._gaps.row((rdata.stream, rdata.writer or ""), batch.token)
        return [ShownRow(rdata.stream, rdata.writer, batch.token, row) for row in batch.rows]

    def _moved(self, position: Position) -> Range | None:
        """Note a POSITION; the range that is missing, if any."""
        self._assembler.reset(position)
        cursor = self._cursor(position.stream, position.writer)
        verdict = cursor.on_position(position.prev, position.new)
        return verdict.span if isinstance(verdict, (Fetch, Reset)) else None

    async def _fill(
        self, peer: RawUpstream, position: Position, span: Range, told_all: bool
    ) -> bool:
        """Show what is missing in front of a POSITION, or say that it is; False as for :data:`Show`.

        :param told_all: a standing TCP connection was told of all positions, as real servers
            do when anybody asks: rows either follow, or those tokens have none
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
        if not told_all:
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
                self._say(str(error))
                upto = error.floor - 1  # what is left is shown first
                continue
            except Trimmed as error:
                self._say(str(error))
                after = int(str(error.facts["trimmed"]))
            except Unavailable as error:
                self._say(f"{error}; trying again")
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
                cursor.subscribed()  # it is part of what ALL asked for
        return cursor

    def _known(self, stream: str) -> Stream | None:
        if stream not in self._catalogue:
            return None
        return self._catalogue[stream]

    def _wants(self, stream: str) -> bool:
        return not self._streams or stream in self._streams

    def _tell_silence(self, peer: RawUpstream) -> None:
        if not peer.greeted:
            self._say(f"nothing was heard from {peer.address} yet; is it a listener for followers?")
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
            self._say(f"the master has not announced a stream {stream!r}; waiting for it")
