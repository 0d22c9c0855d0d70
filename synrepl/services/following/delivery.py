"""Delivers batches to handlers, which have their own positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from synrepl.core.clock import Scheduler
from synrepl.core.log import Logger
from synrepl.core.slices import Slices
from synrepl.core.tokens import Range, Token
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.following.catch_up import CatchUp, FeedContext, LanePosition, ViewFeed
from synrepl.services.following.command_queue import CommandQueue
from synrepl.services.following.consumer import Consumer, PositionTracker, StartAt, Subscription
from synrepl.services.following.dead_letter_replay import DeadLetterReplay
from synrepl.services.following.failures import HandlerFailures
from synrepl.services.following.handler_calls import HandlerCalls
from synrepl.services.following.position_record import HandlerLoss, PositionRecord
from synrepl.services.following.progress import Progress, ignore_move
from synrepl.services.handlers import Batch
from synrepl.services.position_waiters import PositionWaiters
from synrepl.services.sizes import DEFAULT_SIZES, Sizes
from synrepl.services.sources import LINEAR, CatchUpSources, Key
from synrepl.storage.database import Database
from synrepl.storage.incarnations import Incarnations
from synrepl.streams.catalogue import Catalogue
from synrepl.wire.commands import Command


class Delivery:
    """Delivers the facts of a follower's lanes to its handlers, one batch at a time per lane.

    A handler that is behind its lane (new, failing, or resumed after a crash) is fed by a task
    of its own until it has caught up. Where facts cannot be fetched in order it stays in the
    lane, which waits for it.

    :param follower: the name under which positions are recorded; None to record none
    :param database: where positions are recorded and transactional handlers write; None for a
        follower without a database
    :param waiters: woken by every position that moves
    :param coherence: applies facts to the caches of the process before its handlers get them,
        and again after handlers that change the database
    :param sources: where facts are fetched for handlers that are not in a lane
    :param linear: the connection has the linear view
    :param incarnations: the incarnations of the database server that the process has met
    :param catalogue: the streams whose facts may become dead letters
    :param lane_moved: called with stream, writer and position of a lane that may have moved
    :ivar consumers: the handlers, with their settings and positions
    :ivar failures: the handlers that currently fail
    :ivar dead_letters: the facts that handlers could not process
    :ivar progress: the positions of lanes and handlers
    """

    def __init__(
        self,
        scheduler: Scheduler,
        handlers: Sequence[Subscription],
        log: Logger,
        follower: str | None = None,
        database: Database | None = None,
        waiters: PositionWaiters | None = None,
        coherence: Coherence | None = None,
        *,
        sources: CatchUpSources | None = None,
        linear: bool = False,
        incarnations: Incarnations | None = None,
        catalogue: Catalogue = Catalogue(()),  # noqa: B008  # it is immutable
        sizes: Sizes = DEFAULT_SIZES,
        lane_moved: Callable[[str, str, Token], object] = ignore_move,
    ) -> None:
        self._scheduler = scheduler
        self._log = log
        self._follower = follower
        self._coherence = coherence
        self._record = PositionRecord(database, follower, incarnations or Incarnations())
        self._streams = {} if sources is None else sources.streams
        self.failures = HandlerFailures(scheduler, log)
        self.consumers = [Consumer(handler, scheduler, linear) for handler in handlers]
        named = {consumer.name: consumer.handler for consumer in self.consumers}
        slices = Slices(scheduler, sizes.turn_units)
        self._commands = CommandQueue(scheduler, slices, named, self.failures, log)
        calls = self._calls = HandlerCalls(
            scheduler, self._record, self.failures, log, catalogue, coherence
        )
        self.dead_letters = DeadLetterReplay(scheduler, self.consumers, self._record, calls, log)
        self.progress = Progress(
            scheduler,
            self.consumers,
            self._streams,
            self._record,
            self.failures,
            log,
            waiters,
            self._start_catch_up,
            lane_moved,
        )
        self._feed_context: FeedContext | None = None
        if sources is not None:
            self._feed_context = FeedContext(
                scheduler,
                sources,
                calls,
                log,
                self.progress.begin,
                self.progress.moved,
                self._report_loss,
                self._cross_floor,
                sizes.page_rows,
            )
        #: New handlers of a follower that has recorded positions.
        self._joining: list[Consumer] = []
        #: Losses that handlers must learn of before they get any facts.
        self._unreported: list[HandlerLoss] = []
        #: Lanes with handlers that may not have a recorded position yet.
        self._unrecorded_lanes: set[Key] = set()

    @property
    def recorded(self) -> Mapping[Key, Token]:
        """The recorded positions of the follower itself."""
        return self.progress.recorded

    async def start(self) -> None:
        """Read the recorded positions, and log where new handlers start.

        :raises ViewChanged: :raises SynreplError: they cannot be read
        """
        own, self._unreported = await self._record.load(self.consumers, self._streams)
        self.progress.recorded.update(own)
        for consumer in self.consumers:
            if own and not consumer.trackers:
                self._joining.append(consumer)
                self._log.info(
                    "handler {handler} joins follower {follower}: {where}",
                    handler=consumer.name,
                    follower=self._follower,
                    where=consumer.describe_start({stream for stream, _ in own}),
                )

    async def report_losses(self) -> None:
        """Tell plain handlers which facts failovers lost while their process was down.

        They may have got any of those facts, as their positions are recorded late. Retried until
        each handler succeeds.
        """
        consumers = {consumer.name: consumer for consumer in self.consumers}
        unreported, self._unreported = self._unreported, []
        for loss in unreported:
            consumer, (stream, writer) = consumers[loss.handler], loss.key
            self._log_loss(consumer, loss.key, loss.lost)
            await self._calls.reset(consumer, stream, writer, loss.lost.after, loss.lost)
            tracker = consumer.trackers[loss.key]
            if (tracker.position or 0) > loss.lost.after:
                tracker.rewind(loss.lost.after)
        if unreported:
            await self.progress.retry_until_recorded(lambda: self._record.note_reported(unreported))

    def open_lane(self, key: Key, earliest: bool) -> Token | None:
        """Start a lane, and catch-up for the handlers that are behind it.

        :param earliest: start at the oldest fact if there is no position
        :returns: where the lane starts; None for the current position of the writer
        """
        stream, _ = key
        if stream not in self.progress.views:
            self._start_views(stream, earliest)
        trackers = [consumer.tracker(key, earliest) for consumer in self.progress.in_lane(stream)]
        start = self._start_of(key, trackers, earliest)
        self.progress.lanes[key] = LanePosition(start)
        if any(tracker.recorded is None for tracker in trackers):
            self._unrecorded_lanes.add(key)
        if start is not None:
            self._set_start(key, start)
        return start

    def has_history(self, key: Key) -> bool:
        """Whether a handler in the lane has a history there, so that losing facts matters."""
        trackers = (consumer.trackers.get(key) for consumer in self.progress.in_lane(key[0]))
        return any(tracker is not None and tracker.has_history for tracker in trackers) or (
            key in self.recorded
        )

    async def deliver(self, batch: Batch, *, live: bool = True) -> None:
        """Deliver a batch to the handlers in its lane; those that fail leave the lane.

        :param live: it came over the connection, possibly before a failover
        """
        key = (batch.stream, batch.writer)
        self._invalidate_caches(batch)
        consumers = self.progress.in_lane(batch.stream)
        if not consumers:
            return
        lane = self.progress.lane(key)
        if batch.ordered:
            if lane.position is None:
                self._set_start(key, batch.after)
            if key in self._unrecorded_lanes:
                await self._begin(key)
        trackers = [consumer.tracker(key, False) for consumer in consumers]
        for tracker in trackers:
            if tracker.feed is not None:
                await tracker.feed.arrival()
        lane.is_busy = True
        try:
            for consumer, tracker in zip(consumers, trackers, strict=True):
                todo = None if tracker.feed is not None else tracker.unhandled_part(batch)
                if todo is not None:
                    await self._hand_over(consumer, tracker, key, todo, live)
                    self.progress.touch(key)
            if batch.ordered:  # handlers that are still fed join behind this batch
                lane.position = batch.upto
        finally:
            lane.is_busy = False

    async def reset(self, stream: str, writer: str, upto: Token, position: Token) -> None:
        """Tell handlers that a writer started again, or that facts were trimmed before delivery.

        :param upto: facts at or below it are void, or lost
        :param position: where the lane continues; 0 for a writer that started again
        """
        key = (stream, writer)
        if self._coherence is not None:
            self._coherence.reset(stream, writer, upto)
        lane = self.progress.lane(key)
        started_again = position == 0
        lane.position = position
        notified: list[tuple[Consumer, PositionTracker]] = []
        for consumer in self.progress.in_lane(stream):
            tracker = consumer.tracker(key, False)
            is_ahead = (
                not started_again and tracker.position is not None and tracker.position >= position
            )
            if tracker.feed is None and not is_ahead:
                await self._calls.reset(consumer, stream, writer, upto)
                tracker.position = position
                notified.append((consumer, tracker))
        names = [consumer.name for consumer, _ in notified]
        await self.progress.retry_until_recorded(
            lambda: self._record.reset(key, names, position, forget=started_again)
        )
        for _, tracker in notified:
            tracker.recorded = None if tracker.recorded is None else position
        if started_again:
            self.progress.recorded.pop(key, None)

    async def facts_lost(self, key: Key, lost: Range) -> None:
        """Tell handlers that a failover may have lost facts that were delivered to them.

        The facts that survived are delivered again. Transactional handlers continue from their
        recorded position, which was rolled back together with their effects.

        :param lost: ends at the position of the lane, which continues from ``lost.after``
        """
        stream, writer = key
        if self._coherence is not None:
            self._coherence.reset(stream, writer, lost.upto)
        self.progress.lane(key).position = lost.after
        self.progress.lost(key, lost.after)
        for consumer in self.progress.in_lane(stream):
            tracker = consumer.tracker(key, False)
            async with consumer.lock(key):  # it may be processing a lost fact
                at = tracker.position
                if at is not None and not consumer.is_transactional:
                    tracker.rewinds += 1  # drops what was read for it before
            if at is not None and at > lost.after:
                await self._report_loss(consumer, key, Range(lost.after, at))
        await self.progress.reread(key)

    async def cross_floor(self, key: Key) -> None:
        """Prepare the handlers in a lane for facts from after a failover, if there was one."""
        await self.progress.reread(key)
        for consumer in self.progress.in_lane(key[0]):
            if consumer.tracker(key, False).feed is None:  # else its feed does it
                await self._report_unrecorded_loss(consumer, key)

    async def _cross_floor(self, consumer: Consumer, key: Key) -> None:
        """The same for one handler that is not in the lane."""
        await self.progress.reread(key)
        await self._report_unrecorded_loss(consumer, key)

    async def _report_unrecorded_loss(self, consumer: Consumer, key: Key) -> None:
        """Tell a plain handler of losses among facts that an earlier process delivered unrecorded."""
        tracker = consumer.tracker(key, False)
        if tracker.is_resumed and not consumer.is_transactional:
            lost = await self.progress.retry_until_recorded(lambda: self._record.lost(key))
            if lost is not None:
                tracker.is_resumed = False
                await self._report_loss(consumer, key, lost)

    async def _report_loss(self, consumer: Consumer, key: Key, lost: Range) -> None:
        """Tell one handler that facts delivered to it may be lost."""
        if consumer.is_transactional and self._record.is_persistent:
            await self.progress.reread(key)
            return
        self._log_loss(consumer, key, lost)
        await self._calls.reset(consumer, *key, lost.after, lost)
        tracker = consumer.tracker(key, False)
        tracker.rewind(min(lost.after, tracker.position or 0))
        losses = [HandlerLoss(consumer.name, key, lost)]
        await self.progress.retry_until_recorded(lambda: self._record.note_reported(losses))

    def _log_loss(self, consumer: Consumer, key: Key, lost: Range) -> None:
        stream, writer = key
        self._log.warn(
            "the database failed over: handler {handler} is informed that facts of {stream} by {writer}"
            " above {after}, up to {upto}, may be lost",
            handler=consumer.name,
            stream=stream,
            writer=writer or "all writers",
            after=lost.after,
            upto=lost.upto,
        )

    def _start_catch_up(self, consumer: Consumer, key: Key) -> None:
        """Start catch-up for a handler that was moved back behind its lane."""
        stream, writer = key
        lane, tracker, context = self.progress.lane(key), consumer.trackers[key], self._feed_context
        if context is None or stream not in self._streams or tracker.feed is not None:
            return
        is_behind = (tracker.position or 0) < (lane.position or 0)
        if is_behind and consumer in self.progress.in_lane(stream):
            feed = CatchUp(context, consumer, tracker, lane, self._streams[stream], writer)
            self._scheduler.spawn(f"catch up with {stream}", feed.run())

    def lane_moved(self, key: Key, position: Token | None) -> None:
        """Move the position of a lane; the next :meth:`.Progress.record` records it."""
        if position is None:
            return
        if self._coherence is not None:
            self._coherence.begin(*key, position)
        lane = self.progress.lane(key)
        if lane.position is None:
            self._set_start(key, position)
        lane.position = position
        feeds = []
        for consumer in self.progress.in_lane(key[0]):
            tracker = consumer.tracker(key, False)
            if tracker.feed is None:
                tracker.reach(position)
            else:
                feeds.append(tracker.feed)
        self.progress.moved(key)
        for feed in (*feeds, *self.progress.views.get(key[0], ())):
            feed.wake()

    def deliver_command(self, command: Command) -> None:
        """Pass on a command that does not concern streams."""
        self._commands.put("master", command)

    def catching_up(self, consumer: Consumer) -> set[str]:
        """The streams in which a handler is behind its lane."""
        return {
            stream for (stream, _), tracker in consumer.trackers.items() if tracker.feed is not None
        }

    # -- inside -----------------------------------------------------------------------

    def _start_of(
        self, key: Key, trackers: Sequence[PositionTracker], earliest: bool
    ) -> Token | None:
        """Where a lane starts: at its furthest handler, or at the furthest behind if none can catch up."""
        own = self.recorded.get(key)
        if not trackers:
            return own if own is not None else (0 if earliest else None)
        known = [
            (tracker.position, tracker.is_proven)
            for tracker in trackers
            if tracker.position is not None
        ]
        if key[0] in self._streams:
            return max((at for at, is_proven in known if is_proven), default=own)
        return min((at for at, _ in known), default=own)

    def _start_views(self, stream: str, earliest: bool) -> None:
        """Start the feeds of handlers whose view is not that of the connection."""
        feeds = self.progress.views[stream] = []
        if self._feed_context is None or stream not in self._streams:
            return
        for consumer in self.consumers:
            if consumer.receives(stream) and consumer.has_other_view:
                covered = self._covered(consumer, stream, earliest)
                of = self._streams[stream]
                known = max(
                    (at for key, at in self.recorded.items() if key[0] == stream), default=0
                )
                feeds.append(ViewFeed(self._feed_context, consumer, of, earliest, covered, known))
        for feed in feeds:
            self._scheduler.spawn(f"feed {feed.consumer.name} with {stream}", feed.run())

    def _covered(self, consumer: Consumer, stream: str, earliest: bool) -> Token | None:
        """The linear position up to which a handler has handled a stream, as recorded."""
        if consumer.linear:
            return consumer.tracker((stream, LINEAR), earliest).position
        if any(of == stream for of, _ in consumer.trackers):
            return self.recorded.get((stream, LINEAR), 0)
        start = consumer.start(stream)
        begins_here = not earliest if start is None else start is StartAt.NOW
        return None if begins_here else 0

    def _set_start(self, key: Key, position: Token) -> None:
        """Set the first known position of a lane, and start its handlers there or their catch-up."""
        stream, writer = key
        lane = self.progress.lane(key)
        lane.position = position
        behind: list[CatchUp] = []
        for consumer in self.progress.in_lane(stream):
            tracker = consumer.tracker(key, False)
            tracker.begin(position)
            if consumer in self._joining and tracker.recorded is None and tracker.started_from:
                self._log.info(
                    "handler {handler} starts at token {token} of {stream} by {writer}, without facts"
                    " up to there",
                    handler=consumer.name,
                    token=tracker.started_from,
                    stream=stream,
                    writer=writer or "all writers",
                )
            is_behind = (tracker.position or 0) < position
            if is_behind and self._feed_context is not None and stream in self._streams:
                of = self._streams[stream]
                behind.append(CatchUp(self._feed_context, consumer, tracker, lane, of, writer))
        for feed in behind:
            self._scheduler.spawn(f"catch up with {stream}", feed.run())

    def _invalidate_caches(self, batch: Batch) -> None:
        if self._coherence is not None:
            self._coherence.apply(batch.stream, batch.writer, batch.after, batch.facts)

    async def _begin(self, key: Key) -> None:
        """Record where handlers without a recorded position start."""
        for consumer in self.progress.in_lane(key[0]):
            await self.progress.begin(consumer, key)
        self._unrecorded_lanes.discard(key)

    async def _hand_over(
        self, consumer: Consumer, tracker: PositionTracker, key: Key, batch: Batch, live: bool
    ) -> None:
        """Deliver a batch to one handler in the lane; if it fails, it leaves the lane."""
        (stream, writer), retry = key, self._calls.retry()
        if self._feed_context is None or stream not in self._streams or not batch.ordered:
            await self._calls.call_until_done(consumer, tracker, batch, retry)
            return
        is_void = live and consumer.is_transactional and self._record.is_void(tracker, batch)
        if is_void or await self._calls.attempt(consumer, tracker, batch, retry):
            if (tracker.position or 0) < batch.upto:  # another server has taken over
                self.progress.lane(key).position = batch.upto
                self._start_catch_up(consumer, key)
        else:
            of, lane = self._streams[stream], self.progress.lane(key)
            feed = CatchUp(self._feed_context, consumer, tracker, lane, of, writer)
            self._scheduler.spawn(f"retry {consumer.name} at {stream}", feed.run(batch, retry))
