"""Handlers that are not where the lane is: each is fed the facts it lacks by a task of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Range, Token
from synrepl.services.announcing.announce import Log
from synrepl.services.following.consumer import Consumer, Track
from synrepl.services.following.handler_calls import HandlerCalls
from synrepl.services.following.source import LINEAR, PAGE_ROWS, Backlog, Key
from synrepl.services.handlers import Batch
from synrepl.storage.store import Page, Trimmed
from synrepl.streams.definition import Stream

#: Seconds between attempts to read; the last one again and again.
_BACK_OFF_S = (0.1, 0.5, 1.0, 2.0, 5.0)

#: Seconds between two looks at the positions on record, when nothing else tells of new facts.
POLL_S = 1.0

#: The same, when something does: what is announced is on record a little later.
LOOK_AGAIN_S = 0.25


class LanePosition:
    """Up to where a lane has handed facts to the handlers in it.

    :ivar position: None until that is known
    :ivar is_busy: it hands over a batch right now
    """

    __slots__ = ("is_busy", "position")

    def __init__(self, position: Token | None) -> None:
        self.position = position
        self.is_busy = False


@dataclass(frozen=True, slots=True)
class FeedContext:
    """What all feeds work with.

    :ivar begin: puts on record where a handler begins, before it is given anything
    :ivar progressed: told of each (stream, writer) whose position has moved
    """

    scheduler: Scheduler
    backlog: Backlog
    calls: HandlerCalls
    log: Log
    begin: Callable[[Consumer, Key], Awaitable[None]]
    progressed: Callable[[Key], object]


class Pages:
    """Reads facts that one handler lacks of one writer of one stream, and hands them over.

    :param source_fails: called when facts cannot be read now
    """

    def __init__(
        self,
        context: FeedContext,
        consumer: Consumer,
        track: Track,
        stream: Stream,
        writer: str,
        source_fails: Callable[[], object] = lambda: None,
    ) -> None:
        self._context = context
        self._consumer = consumer
        self._track = track
        self._stream = stream
        self._writer = writer
        self._stopped = source_fails
        self._attempts = 0

    async def next(self, upto: Token, read: Callable[[Page], object] = lambda page: None) -> None:
        """Hand over one page of what is between the handler's position and ``upto``.

        Nothing, where it cannot be read now, which is waited for a while.

        :param read: told of the page before it is handed over
        """
        track = self._track
        span = Range(track.position or 0, upto)
        try:
            page = await self._context.backlog.source.page(
                self._stream, span, self._writer or None, PAGE_ROWS
            )
        except Trimmed as error:
            await self._step_over(error)
            return
        except SynreplError as error:
            self._stopped()
            await self._pause(error)
            return
        self._attempts = 0
        read(page)
        if page.facts:
            last = page.facts[-1].token
            batch = Batch(self._stream.name, self._writer, span.after, last, page.facts)
            await self.deal(batch)
        track.reach(page.upto)
        self._context.progressed((self._stream.name, self._writer))

    async def deal(self, batch: Batch, attempts: int = 0) -> None:
        """Have the handler deal with a batch."""
        await self._context.calls.deal(
            self._consumer, self._track, batch, attempts, failed=self._stopped
        )
        self._context.progressed((batch.stream, batch.writer))

    async def _step_over(self, error: Trimmed) -> None:
        """Go on above what has been trimmed."""
        trimmed = int(str(error.facts["trimmed"]))
        stream, log = self._stream.name, self._context.log
        if self._track.has_begun:
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
        self._track.reach(trimmed)
        self._context.progressed((stream, self._writer))

    async def _pause(self, error: SynreplError) -> None:
        """The source is away: wait for it."""
        self._context.log.warn(
            "cannot read what handler {handler} lacks of {stream}: {error}; trying again",
            handler=self._consumer.name,
            stream=self._stream.name,
            error=error,
        )
        await self._context.scheduler.sleep(_BACK_OFF_S[min(self._attempts, len(_BACK_OFF_S) - 1)])
        self._attempts += 1


class CatchUp:
    """Brings a handler to where the lane is, and lets it join.

    The lane goes on meanwhile. Once what is left fits a page, the lane waits for
    the handler before its next batch, so this ends under constant load, too: it
    waits for one page and one batch at most. When the handler fails, or facts
    cannot be read, the lane does not wait.
    """

    def __init__(
        self,
        context: FeedContext,
        consumer: Consumer,
        track: Track,
        lane: LanePosition,
        stream: Stream,
        writer: str,
    ) -> None:
        self._scheduler = context.scheduler
        self._track = track
        self._lane = lane
        self._pages = Pages(context, consumer, track, stream, writer, self._let_go)
        self._is_near = False
        self._arrivals: list[Promise[None]] = []
        self._moved: Promise[None] | None = None
        track.feed = self

    async def run(self, first: Batch | None = None) -> None:
        """Feed the handler until it has joined.

        :param first: a batch that it has failed to deal with, once
        """
        if first is not None:
            await self._pages.deal(first, attempts=1)
        track, lane = self._track, self._lane
        while True:
            goal = lane.position or 0
            if (track.position or 0) < goal:
                await self._pages.next(goal, self._note)
            elif lane.is_busy:
                self._is_near = True
                self._moved = self._scheduler.promise()
                await self._moved
            else:
                break
        track.feed = None
        self._let_go()

    def wake(self) -> None:
        """The lane has moved."""
        moved, self._moved = self._moved, None
        if moved is not None:
            moved.callback(None)

    async def arrival(self) -> None:
        """Wait for the handler, if it is near."""
        if self._is_near:
            arrival: Promise[None] = self._scheduler.promise()
            self._arrivals.append(arrival)
            await arrival

    def _note(self, page: Page) -> None:
        """What comes after this page is what the lane does meanwhile."""
        self._is_near = not page.limited

    def _let_go(self) -> None:
        """Have the lane wait no longer."""
        self._is_near = False
        arrivals, self._arrivals = self._arrivals, []
        for arrival in arrivals:
            arrival.callback(None)


class ViewFeed:
    """Gives a handler another view of a stream than the connection does.

    It reads up to the positions on record: of all writers together, or of each.

    :param earliest: where the handler begins with a writer that it does not know
    :param covered: everything of all writers at or below it is dealt with already; None
        when the handler begins where the stream is
    :param known: how far its follower is known to have been
    :ivar covered: the same, now; None while it is not known where the handler begins
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
        self._pages: dict[str, Pages] = {}
        self._woken = False
        self.covered = covered

    async def run(self) -> None:
        """Feed the handler for as long as the process runs."""
        attempts = 0
        while True:
            try:
                moved = await self._look()
                attempts = 0
            except SynreplError as error:
                self._context.log.warn(
                    "cannot look how far {stream} is, for handler {handler}: {error}; trying again",
                    stream=self._stream.name,
                    handler=self.consumer.name,
                    error=error,
                )
                await self._scheduler.sleep(_BACK_OFF_S[min(attempts, len(_BACK_OFF_S) - 1)])
                attempts += 1
                continue
            if not moved:
                await self._wait()

    def wake(self) -> None:
        """A lane of the stream has moved: there may be more on record soon."""
        self._woken = True

    async def _look(self) -> bool:
        """Feed what is on record now; whether that was more than before."""
        positions = self._context.backlog.positions
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
        track = self.consumer.track((self._stream.name, writer), self._earliest)
        track.begin(max(upto, self._known))
        if track.recorded is None:
            await self._context.begin(self.consumer, (self._stream.name, writer))
        pages = self._pages.get(writer)
        if pages is None:
            pages = Pages(self._context, self.consumer, track, self._stream, writer)
            self._pages[writer] = pages
        moved = False
        while (track.position or 0) < upto:
            await pages.next(upto)
            moved = True
        return moved

    async def _wait(self) -> None:
        """Until there may be more on record, and not less than a moment."""
        self._woken = False
        for _ in range(round(POLL_S / LOOK_AGAIN_S)):
            await self._scheduler.sleep(LOOK_AGAIN_S)
            if self._woken:
                return
