"""Catch-up of handlers that are not in the lane, each in a task of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.retry import BackOff, Retry
from synrepl.core.tokens import Range, Token
from synrepl.services.following.consumer import Consumer, PositionTracker
from synrepl.services.following.handler_calls import HandlerCalls
from synrepl.services.handlers import Batch
from synrepl.services.sources import LINEAR, CatchUpSources, Key
from synrepl.storage.incarnations import JUMP
from synrepl.storage.store import FactsLost, Page, Trimmed
from synrepl.streams.definition import Stream

#: Delay between attempts to read.
_BACK_OFF = BackOff(0.1, 5.0)

#: Seconds between polls of the recorded positions.
POLL_S = 1.0

#: The same after a lane has moved, since positions are recorded soon after they are announced.
POLL_AFTER_MOVE_S = 0.25


class LanePosition:
    """The position up to which a lane has delivered facts to its handlers.

    :ivar position: None until it is known
    :ivar is_busy: a batch is being delivered
    """

    __slots__ = ("is_busy", "position")

    def __init__(self, position: Token | None) -> None:
        self.position = position
        self.is_busy = False


@dataclass(frozen=True, slots=True)
class FeedContext:
    """Collaborators of all feeds.

    :ivar begin: records where a handler starts, before it gets its first fact
    :ivar progressed: called with each (stream, writer) whose position has moved
    :ivar report_loss: informs one handler that a failover has lost facts delivered to it
    :ivar cross_floor: prepares one handler for facts from after a failover, if there was one
    :ivar page_rows: rows read at a time
    """

    scheduler: Scheduler
    sources: CatchUpSources
    calls: HandlerCalls
    log: Logger
    begin: Callable[[Consumer, Key], Awaitable[None]]
    progressed: Callable[[Key], object]
    report_loss: Callable[[Consumer, Key, Range], Awaitable[None]]
    cross_floor: Callable[[Consumer, Key], Awaitable[None]]
    page_rows: int


class PageFeed:
    """Reads the pages that one handler lacks in one (stream, writer), and delivers them.

    :param source_fails: called when facts cannot be read now
    """

    def __init__(
        self,
        context: FeedContext,
        consumer: Consumer,
        tracker: PositionTracker,
        stream: Stream,
        writer: str,
        source_fails: Callable[[], object] = lambda: None,
    ) -> None:
        self._context = context
        self._consumer = consumer
        self._tracker = tracker
        self._stream = stream
        self._writer = writer
        self._source_fails = source_fails
        self._retry = Retry(_BACK_OFF, context.scheduler.random)
        #: Up to here it reads facts that have survived a failover.
        self._surviving_upto: Token = 0

    async def next(self, upto: Token, read: Callable[[Page], object] = lambda page: None) -> None:
        """Read and deliver one page between the handler's position and ``upto``.

        When the source is unavailable, wait a while and return.

        :param read: called with the page before it is delivered
        """
        tracker = self._tracker
        if upto - (tracker.position or 0) >= JUMP:
            key = self._stream.name, self._writer
            await self._context.cross_floor(self._consumer, key)
        rewinds, at = tracker.rewinds, tracker.position or 0
        span = Range(at, min(upto, self._surviving_upto) if at < self._surviving_upto else upto)
        try:
            page = await self._context.sources.source.page(
                self._stream, span, self._writer or None, self._context.page_rows
            )
        except Trimmed as error:
            await self._skip_trimmed(error)
            return
        except FactsLost as error:
            self._surviving_upto = error.floor - 1
            key = (self._stream.name, self._writer)
            await self._context.report_loss(self._consumer, key, Range(error.kept, at))
            return
        except SynreplError as error:
            self._source_fails()
            await self._pause(error)
            return
        self._retry.succeeded()
        if tracker.rewinds != rewinds:  # the page may come from a server that is gone
            return
        read(page)
        if page.facts:
            last = page.facts[-1].token
            batch = Batch(self._stream.name, self._writer, span.after, last, page.facts)
            await self.deliver(batch, rewinds=rewinds)
        if tracker.rewinds == rewinds:
            tracker.reach(page.upto)
        self._context.progressed((self._stream.name, self._writer))

    async def deliver(
        self, batch: Batch, retry: Retry | None = None, rewinds: int | None = None
    ) -> None:
        """Deliver a batch, retrying until the handler has processed it."""
        await self._context.calls.call_until_done(
            self._consumer, self._tracker, batch, retry, failed=self._source_fails, rewinds=rewinds
        )
        self._context.progressed((batch.stream, batch.writer))

    async def _skip_trimmed(self, error: Trimmed) -> None:
        """Continue above the trimmed facts, and notify the handler if it has a history here."""
        trimmed = int(str(error.facts["trimmed"]))
        stream, log = self._stream.name, self._context.log
        if self._tracker.has_history:
            log.warn(
                "handler {handler}: {error}; starting again from there",
                handler=self._consumer.name,
                error=error,
            )
            await self._context.calls.reset(self._consumer, stream, self._writer, trimmed)
        else:
            log.info(
                "handler {handler}: {error}; beginning there",
                handler=self._consumer.name,
                error=error,
            )
        self._tracker.reach(trimmed)
        self._context.progressed((stream, self._writer))

    async def _pause(self, error: SynreplError) -> None:
        """Wait before the next attempt to read from the source."""
        self._context.log.warn(
            "cannot read the facts of {stream} that handler {handler} lacks: {error}; trying again",
            handler=self._consumer.name,
            stream=self._stream.name,
            error=error,
        )
        await self._context.scheduler.sleep(self._retry.failed())


class CatchUp:
    """Feeds a handler until it has reached its lane, and lets it join.

    The lane goes on meanwhile. Once the rest fits one page, the lane waits for the handler
    before its next batch, so that catch-up also ends under constant load: the lane waits for at
    most one page and one batch. It does not wait while the handler fails or the source is
    unavailable.
    """

    def __init__(
        self,
        context: FeedContext,
        consumer: Consumer,
        tracker: PositionTracker,
        lane: LanePosition,
        stream: Stream,
        writer: str,
    ) -> None:
        self._scheduler = context.scheduler
        self._tracker = tracker
        self._lane = lane
        self._pages = PageFeed(context, consumer, tracker, stream, writer, self._release_lane)
        self._is_near = False
        self._arrivals: list[Promise[None]] = []
        self._moved: Promise[None] | None = None
        tracker.feed = self

    async def run(self, first: Batch | None = None, retry: Retry | None = None) -> None:
        """Feed the handler until it has joined.

        :param first: the batch at which the handler has failed
        :param retry: the attempts made at that batch
        """
        if first is not None:
            await self._pages.deliver(first, retry)
        tracker, lane = self._tracker, self._lane
        while True:
            goal = lane.position or 0
            if (tracker.position or 0) < goal:
                await self._pages.next(goal, self._note_last_page)
            elif lane.is_busy:
                self._is_near = True
                self._moved = self._scheduler.promise()
                await self._moved
            else:
                break
        tracker.feed = None
        self._release_lane()

    def wake(self) -> None:
        """Note that the position of the lane has moved."""
        moved, self._moved = self._moved, None
        if moved is not None:
            moved.callback(None)

    async def arrival(self) -> None:
        """Wait until the handler has joined; return at once unless it is about to."""
        if self._is_near:
            arrival: Promise[None] = self._scheduler.promise()
            self._arrivals.append(arrival)
            await arrival

    def _note_last_page(self, page: Page) -> None:
        """Note whether this is the last page, so that the lane should wait."""
        self._is_near = not page.is_limited

    def _release_lane(self) -> None:
        """Stop the lane from waiting."""
        self._is_near = False
        arrivals, self._arrivals = self._arrivals, []
        for arrival in arrivals:
            arrival.callback(None)


class ViewFeed:
    """Feeds a handler whose view of a stream is not that of the connection.

    It reads up to the recorded positions: the linear one, or that of each writer.

    :param earliest: the worker starts at the oldest fact
    :param covered: the handler has handled every fact at or below it; None when it starts at
        the current position of the stream
    :param known: the largest recorded position of the follower
    :ivar covered: the current value of the parameter; None until it is known where the handler
        starts
    """

    def __init__(
        self,
        context: FeedContext,
        consumer: Consumer,
        stream: Stream,
        earliest: bool,
        covered: Token | None,
        known: Token,
    ) -> None:
        self._context = context
        self._scheduler = context.scheduler
        self.consumer = consumer
        self._stream = stream
        self._earliest = earliest
        self._known = known
        self._pages: dict[str, PageFeed] = {}
        self._woken = False
        self.covered = covered

    async def run(self) -> None:
        """Feed the handler for as long as the process runs."""
        retry = Retry(_BACK_OFF, self._scheduler.random)
        while True:
            try:
                moved = await self._poll()
                retry.succeeded()
            except SynreplError as error:
                self._context.log.warn(
                    "cannot read the positions of {stream} for handler {handler}: {error}; trying again",
                    stream=self._stream.name,
                    handler=self.consumer.name,
                    error=error,
                )
                await self._scheduler.sleep(retry.failed())
                continue
            if not moved:
                await self._wait()

    def wake(self) -> None:
        """Note that a lane of the stream has moved, so that its recorded position will soon."""
        self._woken = True

    async def _poll(self) -> bool:
        """Feed up to the recorded positions; True when any of them was ahead of the handler."""
        positions = self._context.sources.positions
        assert positions is not None
        recorded = await positions.recorded(self._stream)
        wanted = {LINEAR: recorded.linear} if self.consumer.linear else recorded.writers
        moved = False
        for writer, upto in wanted.items():
            moved |= await self._feed(writer, upto)
        if self.covered is None or recorded.linear > self.covered:
            self.covered, moved = recorded.linear, True
            self._context.progressed((self._stream.name, LINEAR))
        return moved

    async def _feed(self, writer: str, upto: Token) -> bool:
        tracker = self.consumer.tracker((self._stream.name, writer), self._earliest)
        tracker.begin(max(upto, self._known))
        if tracker.recorded is None:
            await self._context.begin(self.consumer, (self._stream.name, writer))
        pages = self._pages.get(writer)
        if pages is None:
            pages = PageFeed(self._context, self.consumer, tracker, self._stream, writer)
            self._pages[writer] = pages
        moved = False
        while (tracker.position or 0) < upto:
            await pages.next(upto)
            moved = True
        return moved

    async def _wait(self) -> None:
        """Wait for the next poll, or for a lane to move."""
        self._woken = False
        for _ in range(round(POLL_S / POLL_AFTER_MOVE_S)):
            await self._scheduler.sleep(POLL_AFTER_MOVE_S)
            if self._woken:
                return
