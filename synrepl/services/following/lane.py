"""A lane: what waits for one writer of one stream, and the one place that deals with it.

A lane deals with one thing at a time: it asks its
:class:`~synrepl.positions.cursor.Cursor` for a verdict, fetches what is missing,
hands batches to the handlers, and moves its position only when they are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum

from synrepl.core.errors import SynreplError
from synrepl.core.retry import BackOff, Retry
from synrepl.core.tokens import Range, Token
from synrepl.positions.cursor import Cursor, CursorDecision, Fetch, Reset
from synrepl.services.following.follower_context import FollowerContext, tally
from synrepl.services.following.sources import LINEAR
from synrepl.services.handlers import Batch
from synrepl.storage.incarnations import JUMP
from synrepl.storage.store import FactsLost, Trimmed
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import BadRow, MalformedRow, RowCodec
from synrepl.wire.batching import RowBatch
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Position, Replicate

_BACK_OFF = BackOff(0.1, 5.0)

#: How long rows may take that a real server's POSITION was ahead of; seconds between looks.
AHEAD_S = 3.0
_AHEAD_EVERY_S = 0.1


class ConnectionEvent(Enum):
    """Stands in an inbox for what happened to the connection there."""

    LOST = "lost"
    #: A legacy server is to be asked, from wherever the lane stands by then.
    SUBSCRIBE = "ask"


Item = RowBatch | Position | ConnectionEvent


class Lane:
    """One writer of one stream, as a follower sees it.

    :param announced_ahead: the master may announce a position before it sends the rows up
        to there, as real servers do
    :ivar has_multiple_speakers: more than one process may speak for the writer, one that knows less, too
    :ivar is_lossless: nothing is missed while the connection stands, whatever a POSITION says: a
        real server's tokens may have no rows, and its TCP connection loses none
    :ivar announced: the largest token heard of
    :ivar is_running: :meth:`run` is at work
    :ivar has_new_items: something was put into the inbox
    """

    def __init__(
        self,
        stream: Stream,
        writer: str,
        cursor: Cursor,
        codec: RowCodec,
        context: FollowerContext,
        announced_ahead: bool = False,
    ) -> None:
        self.stream = stream
        self.writer = writer
        self.key = (stream.name, writer)
        self.cursor = cursor
        self.has_multiple_speakers = False
        self.is_lossless = False
        self.inbox: deque[Item] = deque()
        self.rows = 0
        self.announced: Token = 0
        self.is_running = False
        self.has_new_items = False
        self._announced_ahead = announced_ahead
        self._decode = codec.decode
        self._context = context
        #: Nothing can be missing below the next fact: it, too, has come on this connection.
        self._gap_checked = False
        #: The last fact of a legacy run, of which more rows may come.
        self._partial_fact: Fact | None = None
        #: The largest token that was heard of and not refused.
        self._accepted_upto: Token = 0
        #: Something was refused since a POSITION: perhaps wrongly, so what follows it is proof
        #: of nothing before it is fetched.
        self._has_refused = False
        #: It had a position before, so what lies below may have been of use.
        self._has_history = context.delivery.has_history(self.key)

    def clear(self) -> None:
        """Forget what waits."""
        self.inbox.clear()
        self.rows = 0

    async def run(self) -> None:
        try:
            while self.inbox:
                item = self.inbox[0]
                if not await self._is_possible(item):
                    continue
                if isinstance(item, RowBatch):
                    if (self.has_multiple_speakers or self._has_refused) and not self._gap_checked:
                        await self._check_gap(item.token)
                    if await self._cross_floor(item.token - 1):
                        await self._take_facts()
                    else:
                        self.inbox.popleft()
                        self._consumed(len(item.rows))
                elif isinstance(item, Position):
                    self.inbox.popleft()
                    self._consumed(1)
                    await self._take_position(item)
                elif item is ConnectionEvent.LOST:
                    self.inbox.popleft()
                    self._partial_fact = None
                    self._gap_checked = False
                    self.cursor.connection_lost()
                else:
                    self.inbox.popleft()
                    await self._subscribe()
        except MalformedRow as error:
            self._context.consumed(self.rows)
            self.clear()
            self._context.close(CloseReason.PROTOCOL_ERROR, str(error))
        finally:
            self.is_running = False

    async def _is_possible(self, item: Item) -> bool:
        """Whether the next thing in the inbox is to be dealt with; what cannot be is taken out.

        :returns: False when the inbox has to be looked at again
        """
        if item is ConnectionEvent.LOST or item is ConnectionEvent.SUBSCRIBE:
            return True
        token = _token(item)
        tokens, retry = self._context.tokens, self._retry()
        while token > self._limit(item):
            queued, looked = len(self.inbox), True
            try:
                await tokens.look_up(self.stream, token)
            except SynreplError as error:
                await self._pause(error, retry, "which tokens were given out")
                looked = False
            if not self.inbox or self.inbox[0] is not item:
                return False  # the connection was lost meanwhile
            if looked and token > self._limit(item):
                self._refuse(queued)
                return False
        self._accepted_upto = max(self._accepted_upto, token)
        self.announced = max(self.announced, token)
        return True

    def _limit(self, item: Item) -> Token:
        """The largest token that it may have, for what is known now."""
        tokens = self._context.tokens
        return (
            tokens.accepted(self.stream)
            if isinstance(item, RowBatch)
            else tokens.known(self.stream)
        )

    def _refuse(self, queued: int) -> None:
        """Take out what cannot be, from the front of the inbox.

        :param queued: how much was there when it was looked up; what came later may be
            of later tokens
        """
        tokens, at = self._context.tokens, self.cursor.position
        for _ in range(queued):
            item = self.inbox[0]
            if isinstance(item, ConnectionEvent) or _token(item) <= self._limit(item):
                break
            self.inbox.popleft()
            tokens.refuse(self.stream, self.writer, _token(item), at)
            self._consumed(len(item.rows) if isinstance(item, RowBatch) else 1)
        self.announced = max(self._accepted_upto, self.cursor.position or 0)
        if self.writer != LINEAR and self.cursor.is_ordered:
            self._has_refused, self._gap_checked = True, False

    def _consumed(self, rows: int) -> None:
        self.rows -= rows
        self._context.consumed(rows)

    async def _check_gap(self, token: Token) -> None:
        """Get what there is below the first fact of a connection.

        The POSITION before it may be that of somebody who took the writer for dead, and
        did not know what it had said by then. From here on nothing is missed unseen.
        """
        at = self.cursor.position
        if self.cursor.is_connected and at is not None:
            self._gap_checked = True
            if token > at + 1:
                await self._fetch(Range(at, token - 1))

    async def _subscribe(self) -> None:
        """Ask a legacy server for the rest of the stream.

        It has no way to say that part of that is trimmed, so this is found out first.
        """
        at, retry = self.cursor.position, self._retry()
        known = not (self.stream.ephemeral and self.cursor.is_ordered and at)
        while not known and ConnectionEvent.LOST not in self.inbox:
            assert at is not None
            try:
                await self._context.source.page(self.stream, Range(at, at + 1), None, 1)
            except Trimmed as error:
                upto = int(str(error.facts["trimmed"]))
                await self._restart(error, upto, upto)
                self.cursor.caught_up(upto)
                self._context.delivery.lane_moved(self.key, self.cursor.position)
            except SynreplError as error:
                await self._pause(error, retry)
                continue
            known = True
        if known:
            self._context.send(Replicate(self.stream.name, self.cursor.subscribed()))

    async def _take_facts(self) -> None:
        """Take the facts at the front of the inbox, as one batch."""
        cursor, inbox, decode = self.cursor, self.inbox, self._decode
        limit = self._context.tokens.accepted(self.stream)
        facts: list[Fact] = [] if self._partial_fact is None else [self._partial_fact]
        last, ordered, writer = cursor.position, cursor.is_ordered, self.writer
        upto, rows = facts[0].token if facts else 0, 0
        try:
            while inbox and rows < self._context.page_rows:
                lines = inbox[0]
                if not isinstance(lines, RowBatch) or lines.token > limit:
                    break
                if facts and self._may_cross_floor(upto, lines.token - 1):
                    break
                inbox.popleft()
                token, raw = lines
                rows += len(raw)
                if not facts or token <= upto:  # what is above an applied fact is applied too
                    verdict = cursor.on_rdata(token)
                    if verdict is CursorDecision.APPLY and facts and ordered:
                        # A legacy catch-up repeats the token for each row of a fact.
                        more = writer == LINEAR and token == upto
                        verdict = CursorDecision.APPLY if more else CursorDecision.DUPLICATE
                    if verdict is not CursorDecision.APPLY:
                        if verdict is CursorDecision.DUPLICATE:
                            tally(self._context.counts.duplicates, self.stream.name, len(raw))
                        continue
                try:
                    decoded = (decode(raw[0]),) if len(raw) == 1 else tuple(map(decode, raw))
                except BadRow:
                    decoded = self._decode_valid(raw)
                if facts and token == upto and ordered:
                    decoded = (*facts.pop().rows, *decoded)
                facts.append(Fact(token, writer, decoded))
                upto = token
        finally:
            self._consumed(rows)
        if facts:
            tokens = [fact.token for fact in facts]
            # In a legacy run more rows of the last fact may come.
            self._partial_fact = facts.pop() if cursor.is_replaying and ordered else None
            if facts:
                await self._deliver(facts, last)
            cursor.all_applied(tokens)
            self._context.delivery.lane_moved(self.key, cursor.position)

    async def _take_position(self, command: Position) -> None:
        if not await self._cross_floor(command.new):
            return
        await self._deliver_partial_fact()
        first = not self.cursor.is_connected
        verdict = self.cursor.on_position(None if self._has_refused else command.prev, command.new)
        self._has_refused = False
        if isinstance(verdict, Reset):
            tally(self._context.counts.resets, self.stream.name)
            await self._context.delivery.reset(self.stream.name, self.writer, verdict.span.upto, 0)
            await self._fetch(verdict.span)
        elif isinstance(verdict, Fetch):
            tally(self._context.counts.gaps, self.stream.name)
            if self.writer == LINEAR and self._announced_ahead:
                self.cursor.skip(command.new)
            elif self.writer == LINEAR:
                # All that a line can carry has come before it, in order.
                self.cursor.caught_up(command.new)
            else:
                await self._fetch(verdict.span, missed=first or not self.is_lossless)
        self._has_history = True
        self._context.delivery.lane_moved(self.key, self.cursor.position)

    async def _deliver_partial_fact(self) -> Token | None:
        """Hand over the last fact of a legacy run, which is complete; up to where all is handed over."""
        at = self.cursor.position
        if self._partial_fact is not None:
            half, self._partial_fact = self._partial_fact, None
            await self._deliver([half], at)
            at = half.token
        return at

    async def _cross_floor(self, upto: Token) -> bool:
        """Look what is left below ``upto`` where a failover has moved the linear view on.

        A legacy server has no way to say that it has. False when the connection was lost
        meanwhile: what it brought is void, for the next one begins where the lane is.
        """
        at = self.cursor.position if self._partial_fact is None else self._partial_fact.token
        if at is not None and self._may_cross_floor(at, upto):
            at = await self._deliver_partial_fact()
            if at:
                self._context.delivery.lane_moved(
                    self.key, at
                )  # who waits for the last fact goes on
                return await self._fetch(Range(at, upto))
            await self._context.delivery.cross_floor(self.key)  # below is nothing to look for
        return True

    def _may_cross_floor(self, at: Token, upto: Token) -> bool:
        return self.writer == LINEAR and upto - at >= JUMP and not self._announced_ahead

    async def _fetch(self, span: Range, missed: bool = True) -> bool:
        """Fill a gap, page by page; what goes wrong is tried again while the gap matters.

        :param missed: there may have been rows that were not received
        :returns: whether it is filled: not when the connection was lost meanwhile
        """
        if span.upto - span.after >= JUMP:
            await self._context.delivery.cross_floor(self.key)
        after, retry, upto = span.after, self._retry(), span.upto
        while after < span.upto and ConnectionEvent.LOST not in self.inbox:
            try:
                page = await self._context.source.page(
                    self.stream, Range(after, upto), self.writer or None, self._context.page_rows
                )
            except FactsLost as error:
                await self._facts_lost(error, after)
                # What is left is read first, without leaving it.
                after, upto = error.kept, error.floor - 1
                continue
            except Trimmed as error:
                trimmed = int(str(error.facts["trimmed"]))  # perhaps beyond what was asked for
                follows = await self._next_received_row(Range(after, span.upto))
                position = trimmed if follows is None else follows - 1
                if missed:
                    upto = max(trimmed, span.upto) if follows is None else position
                    await self._report_loss(error, after, upto, position)
                if follows is None:
                    after = trimmed
                    self.cursor.caught_up(after)
                else:
                    after = span.upto
                    self.cursor.skip(position)
                self._context.delivery.lane_moved(self.key, self.cursor.position)
                continue
            except SynreplError as error:
                await self._pause(error, retry)
                continue
            if page.facts:
                await self._deliver(page.facts, after, live=False)
                count = sum(len(fact.rows) for fact in page.facts)
                tally(self._context.counts.fetched_rows, self.stream.name, count)
            after = page.upto
            upto = span.upto if after >= upto else upto
            self.cursor.caught_up(after)
            self._context.delivery.lane_moved(self.key, self.cursor.position)
        return after >= span.upto

    async def _facts_lost(self, error: FactsLost, after: Token) -> None:
        """The database failed over, and facts at or below ``after`` may be lost."""
        self._context.log.warn("{error}", error=error)
        tally(self._context.counts.resets, self.stream.name)
        await self._context.delivery.facts_lost(self.key, Range(error.kept, after))
        self.cursor.rewind(error.kept)

    async def _next_received_row(self, span: Range) -> Token | None:
        """The first row that comes after a POSITION that was ahead of it; None when none does.

        It is waited for where only the master has rows, which cannot be fetched.
        """
        if not (self._announced_ahead and self.stream.in_memory):
            return None
        left = AHEAD_S
        while left > 0 and ConnectionEvent.LOST not in self.inbox:
            first = next((item.token for item in self.inbox if isinstance(item, RowBatch)), None)
            if first is not None:
                return first if first in span else None
            await self._context.scheduler.sleep(_AHEAD_EVERY_S)
            left -= _AHEAD_EVERY_S
        return None

    async def _report_loss(
        self, error: Trimmed, after: Token, upto: Token, position: Token
    ) -> None:
        """Facts above ``after`` up to ``upto`` are gone: tell handlers, unless they had none.

        :param position: from where it goes on
        """
        if upto <= after:
            return
        if self._has_history or after:
            await self._restart(error, upto, position)
        else:
            self._context.log.info("{error}; beginning there", error=error)

    def _retry(self) -> Retry:
        return Retry(_BACK_OFF, self._context.scheduler.random)

    async def _pause(self, error: SynreplError, retry: Retry, what: str = "missed facts") -> None:
        """The source is away: wait for it."""
        self._context.log.warn(
            "cannot look for {what}: {error}; trying again", what=what, error=error
        )
        await self._context.scheduler.sleep(retry.failed())

    async def _restart(self, error: Trimmed, upto: Token, position: Token) -> None:
        """Have it forgotten what came of the writer: facts are gone that were not seen.

        :param position: from where it goes on
        """
        self._context.log.warn(
            "{stream}: {error}; starting again from there", stream=self.stream.name, error=error
        )
        tally(self._context.counts.resets, self.stream.name)
        await self._context.delivery.reset(self.stream.name, self.writer, upto, position)

    async def _deliver(self, facts: Sequence[Fact], after: Token | None, live: bool = True) -> None:
        upto = facts[-1].token
        start = after if after is not None else facts[0].token - 1
        batch = Batch(self.stream.name, self.writer, start, upto, facts, self.cursor.is_ordered)
        await self._context.delivery.deliver(batch, live=live)
        count = sum(len(fact.rows) for fact in facts)
        tally(self._context.counts.rows, self.stream.name, count)

    def _decode_valid(self, rows: Iterable[bytes]) -> tuple[Row, ...]:
        """The rows that are rows; the others are counted, and the first of a kind is logged."""
        good: list[Row] = []
        for row in rows:
            try:
                good.append(self._decode(row))
            except BadRow as error:
                if tally(self._context.counts.bad_rows, self.stream.name) == 1:
                    self._context.log.warn("{error}; such rows are ignored", error=error)
        return tuple(good)


def _token(item: Item) -> Token:
    assert not isinstance(item, ConnectionEvent)
    return item.token if isinstance(item, RowBatch) else item.new
