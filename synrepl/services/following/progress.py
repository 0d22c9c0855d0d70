"""Tracks and records the positions of a follower's lanes and handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.retry import Retry
from synrepl.core.tokens import Token
from synrepl.services.following.catch_up import LanePosition, ViewFeed
from synrepl.services.following.consumer import Consumer, FairLock, PositionTracker
from synrepl.services.following.failures import HandlerFailures
from synrepl.services.following.handler_calls import BACK_OFF
from synrepl.services.following.position_record import PositionRecord
from synrepl.services.position_waiters import PositionWaiters
from synrepl.services.sources import Key
from synrepl.storage.followers.handler_positions import HandlerPosition, Place

T = TypeVar("T")


def ignore_move(stream: str, writer: str, position: Token) -> None:
    """Do nothing, where nobody wants to know of moves."""


class Progress:
    """Tracks the positions of lanes and handlers, and records them.

    :param in_order: names of the streams whose facts can be fetched in order
    :param waiters: woken when all handlers have reached a position
    :param moved_back: called with a handler that a failover has moved back
    :param lane_moved: called with stream, writer and position of a lane that may have moved
    :ivar lanes: positions of the lanes, by stream and writer
    :ivar views: feeds of handlers whose view is not that of the connection, by stream
    :ivar recorded: recorded positions of the follower itself, which all handlers have reached
    """

    def __init__(
        self,
        scheduler: Scheduler,
        consumers: Sequence[Consumer],
        in_order: Collection[str],
        record: PositionRecord,
        failures: HandlerFailures,
        log: Logger,
        waiters: PositionWaiters | None,
        moved_back: Callable[[Consumer, Key], object],
        lane_moved: Callable[[str, str, Token], object],
    ) -> None:
        self._scheduler = scheduler
        self._consumers = {consumer.name: consumer for consumer in consumers}
        self._in_order = in_order
        self._record = record
        self._failures = failures
        self._log = log
        self._waiters = waiters
        self._moved_back = moved_back
        self._lane_moved = lane_moved
        self._lane_consumers: dict[str, list[Consumer]] = {}
        #: Held while the record is written, so that moving positions back waits for writes in
        #: progress.
        self._writing = FairLock(scheduler)
        #: Lanes in which positions may have moved since they were last recorded, in this order.
        self._moved: dict[Key, None] = {}
        self.lanes: dict[Key, LanePosition] = {}
        self.views: dict[str, list[ViewFeed]] = {}
        self.recorded: dict[Key, Token] = {}

    def in_lane(self, stream: str) -> list[Consumer]:
        """The handlers that get a stream in the view of the connection, transactional ones first."""
        found = self._lane_consumers.get(stream)
        if found is None:
            found = [
                consumer
                for consumer in self._consumers.values()
                if consumer.receives(stream)
                and not (consumer.has_other_view and stream in self._in_order)
            ]
            found.sort(key=lambda consumer: not consumer.is_transactional)
            self._lane_consumers[stream] = found
        return found

    def lane(self, key: Key) -> LanePosition:
        """The position of a lane."""
        found = self.lanes.get(key)
        if found is None:
            found = self.lanes[key] = LanePosition(None)
        return found

    def touch(self, key: Key) -> None:
        """Note that a handler has moved within a batch of its lane."""
        self._moved[key] = None

    def moved(self, key: Key) -> None:
        """Note that a handler or a lane has moved, and wake waiters."""
        keys = [key]
        if self.views.get(key[0]):  # a view feed holds back all lanes of its stream
            keys += [other for other in self.lanes if other[0] == key[0]]
        self._moved.update(dict.fromkeys(keys))
        lane = self.lanes.get(key)
        if lane is not None and lane.position is not None:
            self._lane_moved(*key, lane.position)
        if self._waiters is None:
            return
        for lane_key in keys:
            at = self.position(lane_key)
            if at is not None:
                self._waiters.moved(lane_key, at)

    @property
    def positions(self) -> dict[Key, Token]:
        """The positions that all handlers have reached, where they are known."""
        found = ((key, self.position(key)) for key in self.lanes)
        return {key: at for key, at in found if at is not None}

    def position(self, key: Key, *, on_record: bool = False) -> Token | None:
        """The position in a lane that all handlers have reached; None while unknown.

        :param on_record: use the recorded position while a transaction is changing it
        """
        lane = self.lanes.get(key)
        if lane is None or lane.position is None:
            return None
        least = lane.position
        for consumer in self.in_lane(key[0]):
            tracker = consumer.trackers.get(key)
            if tracker is None:
                continue
            at = tracker.recorded if on_record and tracker.in_transaction else tracker.position
            if at is not None and at < least:
                least = at
        for feed in self.views.get(key[0], ()):
            if feed.covered is None:
                return None
            least = min(least, feed.covered)
        return least

    def held_by(self, key: Key) -> str | None:
        """Which handlers hold a position back and why, as text; None when none does."""
        failing = self._failures.summary(key)
        if failing is not None:
            return failing
        stream, _ = key
        for consumer in self.in_lane(stream):
            tracker = consumer.trackers.get(key)
            if tracker is not None and tracker.feed is not None:
                return f"handler {consumer.name} is catching up, and is at {tracker.position}"
        lane = self.lane(key).position or 0
        for feed in self.views.get(stream, ()):
            if feed.covered is not None and feed.covered < lane:
                return f"handler {feed.consumer.name} is catching up, and is at {feed.covered}"
        return None

    # -- the record -------------------------------------------------------------------

    async def record(self) -> None:
        """Record the positions that moved since the last call.

        :raises SynreplError: they could not be written; the next call tries again
        """
        if self._record.is_persistent and self._moved:
            async with self._writing:
                await self._record_moved()

    async def _record_moved(self) -> None:
        moved, self._moved = self._moved, {}
        handlers: dict[Place, HandlerPosition] = {}
        own: dict[Key, Token] = {}
        for key in moved:
            for consumer in self._consumers.values():
                tracker = consumer.trackers.get(key)
                if tracker is None or tracker.position is None or tracker.in_transaction:
                    continue
                if tracker.recorded is None or tracker.recorded < tracker.position:
                    at = HandlerPosition(tracker.position, tracker.started_from)
                    handlers[consumer.name, *key] = at
            reached = self.position(key, on_record=True)
            if reached is not None and self.recorded.get(key, -1) < reached:
                own[key] = reached
        try:
            reread = await self._record.write(handlers, own, self._transactional(moved))
        except BaseException:
            self._moved |= moved
            raise
        self._wrote({place: at for place, at in handlers.items() if place not in reread})
        moved_back = {(stream, writer) for _, stream, writer in reread}
        for key, position in own.items():
            if key not in moved_back:
                self.recorded[key] = max(position, self.recorded.get(key, 0))
        self._feed_moved_back(reread)

    async def reread(self, key: Key) -> None:
        """Move transactional handlers to the record of a server that has taken over."""
        trackers = self._transactional([key])
        if not trackers:
            return
        before = {place: tracker.rewinds for place, tracker in trackers.items()}
        await self.retry_until_recorded(lambda: self._record.reread(trackers))
        self._feed_moved_back(
            place for place, tracker in trackers.items() if tracker.rewinds != before[place]
        )

    def lost(self, key: Key, position: Token) -> None:
        """Lower the recorded position to ``position``: facts above it may be lost."""
        if self.recorded.get(key, 0) > position:
            self.recorded[key] = position

    def _transactional(self, keys: Iterable[Key]) -> dict[Place, PositionTracker]:
        return {
            (consumer.name, *key): consumer.trackers[key]
            for key in keys
            for consumer in self._consumers.values()
            if consumer.is_transactional and key in consumer.trackers
        }

    def _feed_moved_back(self, places: Iterable[Place]) -> None:
        for handler, stream, writer in places:
            consumer, key = self._consumers[handler], (stream, writer)
            self.lost(key, consumer.trackers[key].position or 0)
            self._moved_back(consumer, key)

    async def begin(self, consumer: Consumer, key: Key) -> None:
        """Record where a handler starts, before it gets its first fact."""
        tracker = consumer.trackers[key]
        if (
            tracker.recorded is not None
            or tracker.position is None
            or not self._record.is_persistent
        ):
            return
        at = {(consumer.name, *key): HandlerPosition(tracker.position, tracker.started_from)}
        await self.retry_until_recorded(lambda: self._record.write(at, {}, {}))
        self._wrote(at)

    async def retry_until_recorded(self, write: Callable[[], Awaitable[T]]) -> T:
        """Retry writing or reading the record until it succeeds."""
        retry = Retry(BACK_OFF, self._scheduler.random)
        while True:
            try:
                async with self._writing:
                    return await write()
            except SynreplError as error:
                self._log.warn("cannot record positions: {error}; trying again", error=error)
                await self._scheduler.sleep(retry.failed())

    def _wrote(self, handlers: Mapping[Place, HandlerPosition]) -> None:
        for (handler, stream, writer), at in handlers.items():
            tracker = self._consumers[handler].trackers[stream, writer]
            tracker.recorded = max(at.position, tracker.recorded or 0)
