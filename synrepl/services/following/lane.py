"""A lane: the inbox of one (stream, writer) of a follower, and the task that processes it.

A lane processes one item at a time. It asks its :class:`~synrepl.positions.cursor.Cursor` for a
decision, fetches what is missing, hands batches to the handlers, and moves its position only when
they are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from synrepl.core.errors import SynreplError
from synrepl.core.retry import BackOff, Retry
from synrepl.core.tokens import Range, Token
from synrepl.positions.cursor import Cursor, CursorDecision, Fetch, Reset
from synrepl.services.following.follower_context import (
    ConnectionEvent,
    FollowerContext,
    Item,
    tally,
)
from synrepl.services.handlers import Batch
from synrepl.services.sources import LINEAR
from synrepl.storage.incarnations import JUMP
from synrepl.storage.store import FactsLost, Trimmed
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import BadRow, MalformedRow, RowCodec
from synrepl.wire.batching import RowBatch
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Position, Replicate

_BACK_OFF = BackOff(0.1, 5.0)

#: How long a real server may take to send the rows below its POSITION, and how often the inbox is
#: checked for them, both in seconds.
AHEAD_S = 3.0
_AHEAD_EVERY_S = 0.1


class Lane:
    """Follows one writer of one stream.

    :param announced_ahead: the master may announce a position before it sends the rows below
        it, as real servers do
    :ivar has_multiple_speakers: several processes may announce the writer, including some that
        are not up to date
    :ivar is_lossless: no row is lost while the connection lasts, so a gap in POSITION means
        tokens without rows; true for a real server over TCP
    :ivar rows: rows and positions in the inbox
    :ivar announced: the largest token that the master has announced
    :ivar is_running: :meth:`run` is in progress
    :ivar has_new_items: the inbox has items that :meth:`run` may not have seen
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
        #: No fact below the next one can be missing: it would have come on this connection.
        self._gap_checked = False
        #: The last fact of a legacy catch-up, which may still get more rows.
        self._partial_fact: Fact | None = None
        #: The largest announced token that was not refused.
        self._accepted_upto: Token = 0
        #: A token was refused since the last POSITION. The refusal may have been wrong, so the
        #: next fact does not prove that nothing is missing below it.
        self._has_refused = False
        #: It had a position before, so handlers may have seen facts that are gone now.
        self._has_history = context.delivery.has_history(self.key)

    def clear(self) -> None:
        """Empty the inbox."""
        self.inbox.clear()
        self.rows = 0

    async def run(self) -> None:
        """Process the inbox until it is empty."""
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
        """Whether the token of an item can have been given out; remove the item when it cannot.

        :returns: False when the front of the inbox has changed
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
                await self._pause(error, retry, "look up which tokens were given out")
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
        """The largest token that the item may have, as far as known without a lookup."""
        tokens = self._context.tokens
        return (
            tokens.accepted(self.stream)
            if isinstance(item, RowBatch)
            else tokens.known(self.stream)
        )

    def _refuse(self, queued: int) -> None:
        """Remove items with impossible tokens from the front of the inbox.

        :param queued: items in the inbox when the tokens were looked up; later ones may have
            tokens that were given out since
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
        """Fetch the facts between the lane's position and the first fact of a connection.

        The POSITION before that fact may come from a process that took the writer for dead and
        did not know its latest position. From here on the connection shows every gap.
        """
        at = self.cursor.position
        if self.cursor.is_connected and at is not None:
            self._gap_checked = True
            if token > at + 1:
                await self._fetch(Range(at, token - 1))

    async def _subscribe(self) -> None:
        """Subscribe at a legacy server, from the lane's position.

        Its protocol cannot report trimmed facts, so the source is asked for them first.
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
        """Deliver the facts at the front of the inbox as one batch."""
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
                if not facts or token <= upto:  # facts above an applied one are applied, too
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
            # In a legacy catch-up the last fact may still get more rows.
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
                # Every fact that a line can carry came before the POSITION, in order.
                self.cursor.caught_up(command.new)
            else:
                await self._fetch(verdict.span, missed=first or not self.is_lossless)
        self._has_history = True
        self._context.delivery.lane_moved(self.key, self.cursor.position)

    async def _deliver_partial_fact(self) -> Token | None:
        """Deliver the last fact of a legacy catch-up, now complete; return the position reached."""
        at = self.cursor.position
        if self._partial_fact is not None:
            half, self._partial_fact = self._partial_fact, None
            await self._deliver([half], at)
            at = half.token
        return at

    async def _cross_floor(self, upto: Token) -> bool:
        """Fetch what is left below ``upto`` where a failover may have moved the linear view ahead.

        A legacy server cannot report failovers. False when the connection was lost meanwhile:
        drop what it brought, as the next one starts at the lane's position.
        """
        at = self.cursor.position if self._partial_fact is None else self._partial_fact.token
        if at is not None and self._may_cross_floor(at, upto):
            at = await self._deliver_partial_fact()
            if at:
                self._context.delivery.lane_moved(self.key, at)  # wakes its waiters
                return await self._fetch(Range(at, upto))
            await self._context.delivery.cross_floor(self.key)  # nothing to fetch from the start
        return True

    def _may_cross_floor(self, at: Token, upto: Token) -> bool:
        return self.writer == LINEAR and upto - at >= JUMP and not self._announced_ahead

    async def _fetch(self, span: Range, missed: bool = True) -> bool:
        """Fill a gap page by page, retrying until it is filled or the connection is lost.

        :param missed: the gap may contain rows that were not received
        :returns: False when the connection was lost before the gap was filled
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
                # Read up to the floor first: those facts have survived.
                after, upto = error.kept, error.floor - 1
                continue
            except Trimmed as error:
                trimmed = int(str(error.facts["trimmed"]))  # may be beyond the span
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
        """Report facts at or below ``after`` that a failover of the database may have lost."""
        self._context.log.warn("{error}", error=error)
        tally(self._context.counts.resets, self.stream.name)
        await self._context.delivery.facts_lost(self.key, Range(error.kept, after))
        self.cursor.rewind(error.kept)

    async def _next_received_row(self, span: Range) -> Token | None:
        """Wait for the first row below a POSITION that was announced ahead; None if none comes.

        Only for streams in memory, whose rows cannot be fetched.
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
        """Tell handlers that facts in (``after``, ``upto``] are gone, unless they had no facts yet.

        :param position: where the lane continues
        """
        if upto <= after:
            return
        if self._has_history or after:
            await self._restart(error, upto, position)
        else:
            self._context.log.info("{error}; beginning there", error=error)

    def _retry(self) -> Retry:
        return Retry(_BACK_OFF, self._context.scheduler.random)

    async def _pause(
        self, error: SynreplError, retry: Retry, action: str = "fetch missed facts"
    ) -> None:
        """Wait before the next attempt to read from the source."""
        self._context.log.warn("cannot {action}: {error}; trying again", action=action, error=error)
        await self._context.scheduler.sleep(retry.failed())

    async def _restart(self, error: Trimmed, upto: Token, position: Token) -> None:
        """Reset everything derived from this writer: facts were trimmed before we saw them.

        :param position: where the lane continues
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
        """The valid rows; invalid ones are counted, and the first one of the stream is logged."""
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
