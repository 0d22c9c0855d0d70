"""The handlers of a process and their positions, per stream and writer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from inspect import Parameter, signature
from typing import Protocol

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import ConfigError
from synrepl.core.tokens import Token
from synrepl.services.handlers import Batch, Handler, as_transactional
from synrepl.services.sources import LINEAR, Key


class StartAt(StrEnum):
    """Where a handler without a recorded position starts."""

    #: At the oldest fact.
    EARLIEST = "earliest"
    #: At the position of its worker.
    NOW = "now"


#: A token starts the handler with the first fact above it.
Start = StartAt | Token


class ViewChanged(ConfigError):
    """handler {handler!r} has per-writer positions of {stream!r} on record, and its view is linear now: give it another 'name' and a 'start'"""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A handler and its settings.

    :ivar name: under which its positions are kept; None for the path of its class
    :ivar start: where it starts without a position; None for its worker's start
    :ivar start_of: overrides ``start`` by stream name
    :ivar attempts: failed attempts after which a fact becomes a dead letter; None
        for never
    """

    handler: Handler
    name: str | None = None
    start: Start | None = None
    start_of: Mapping[str, Start] = field(default_factory=dict)
    attempts: int | None = None


class HandlerFeed(Protocol):
    """Delivers facts to a handler that is not in the lane."""

    def wake(self) -> None:
        """Note that the position of the lane has moved."""

    async def arrival(self) -> None:
        """Wait until the handler has joined the lane; return at once unless it is about to."""


class FairLock:
    """A lock that is acquired in the order of the requests."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_taken = False
        self._waiting: deque[Promise[None]] = deque()

    async def __aenter__(self) -> None:
        if self._is_taken:
            waiting: Promise[None] = self._scheduler.promise()
            self._waiting.append(waiting)
            await waiting
        self._is_taken = True

    async def __aexit__(self, *error: object) -> None:
        if self._waiting:
            self._waiting.popleft().callback(None)
        else:
            self._is_taken = False


class PositionTracker:
    """The position of one handler in one (stream, writer).

    :ivar position: every fact at or below it is handled; None until the lane has a position,
        for a handler that starts there
    :ivar recorded: the position on record; None before the first one
    :ivar started_from: where the handler started, so that it never gets facts at or below it;
        None when unknown
    :ivar is_of_new_writer: the writer appeared after the handler had begun with the stream
    :ivar feed: feeds the handler while it is not in the lane
    :ivar in_transaction: a transaction that moves the recorded position is in progress
    :ivar is_resumed: an earlier process may have gone further than it had recorded
    :ivar rewinds: how often a failover has moved it back
    :ivar floor: facts from the connection below it come from a server that is gone
    :ivar incarnation: incarnation of the server on which the recorded position was last read;
        0 for the one on which the process started
    """

    __slots__ = (
        "feed",
        "floor",
        "in_transaction",
        "incarnation",
        "is_of_new_writer",
        "is_resumed",
        "position",
        "recorded",
        "rewinds",
        "started_from",
    )

    def __init__(
        self,
        position: Token | None,
        recorded: Token | None = None,
        started_from: Token | None = None,
        is_of_new_writer: bool = False,
    ) -> None:
        self.position = position
        self.recorded = recorded
        self.started_from = started_from
        self.is_of_new_writer = is_of_new_writer
        self.feed: HandlerFeed | None = None
        self.in_transaction = False
        self.is_resumed = False
        self.rewinds = 0
        self.incarnation = 0
        self.floor: Token = 0

    def rewind(self, position: Token) -> None:
        """Move back after a failover."""
        self.position = position
        # The record may be further behind: past ranges without facts it moves late.
        self.recorded = None if self.recorded is None else min(self.recorded, position)
        self.rewinds += 1

    def reread(self, recorded: Token | None, incarnation: int, floor: Token) -> None:
        """Continue from the position recorded on a server that has taken over.

        :param recorded: None when that server has no position of this handler
        """
        self.rewind((self.started_from or 0) if recorded is None else recorded)
        self.recorded = recorded
        self.incarnation = incarnation
        self.floor = floor

    @property
    def has_history(self) -> bool:
        """The handler has a history in this stream, so that losing facts matters to it."""
        return self.recorded is not None or bool(self.position) or self.is_of_new_writer

    @property
    def is_proven(self) -> bool:
        """The writer has reached the position; a configured token does not prove that."""
        return self.position == 0 or self.position not in (None, self.started_from)

    def begin(self, position: Token) -> None:
        """Set the first position, unless there is one."""
        if self.position is None:
            self.position = self.started_from = position

    def reach(self, position: Token) -> None:
        """Move to ``position``, never back."""
        if self.position is None or position > self.position:
            self.position = position

    def unhandled_part(self, batch: Batch) -> Batch | None:
        """The part of a batch above the position; None when nothing is left."""
        at = self.position
        if at is None or at <= batch.after or not batch.ordered:
            return batch
        facts = [fact for fact in batch.facts if fact.token > at]
        return replace(batch, after=at, facts=facts) if facts else None


class Consumer:
    """A handler with its settings and positions.

    :param linear: the connection has the linear view
    :ivar attempts: failed attempts after which a fact becomes a dead letter; None for never
    :ivar linear: the handler gets the linear view of streams that have a table
    :ivar has_other_view: its view is not that of the connection
    :ivar trackers: its positions, by stream and writer
    """

    def __init__(self, subscription: Subscription, scheduler: Scheduler, linear: bool) -> None:
        handler = self.handler = subscription.handler
        cls = type(handler)
        self.name = subscription.name or f"{cls.__module__}:{cls.__qualname__}"
        self.attempts = subscription.attempts
        self.linear = linear if handler.view is None else handler.view == "linear"
        self.has_other_view = self.linear is not linear
        self.trackers: dict[Key, PositionTracker] = {}
        self._start = subscription.start
        self._start_of = subscription.start_of
        self._scheduler = scheduler
        self._locks: dict[Key, FairLock] = {}

    @property
    def accepts_lost_range(self) -> bool:
        """Whether its ``on_reset`` has the parameter ``lost``, which older handlers lack."""
        parameters = signature(self.handler.on_reset).parameters.values()
        kinds = [parameter.kind for parameter in parameters]
        positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        return Parameter.VAR_POSITIONAL in kinds or sum(kind in positional for kind in kinds) > 3

    @property
    def is_transactional(self) -> bool:
        """Its effects commit together with its position."""
        return as_transactional(self.handler) is not None

    def receives(self, stream: str) -> bool:
        """Whether it subscribes to a stream."""
        return self.handler.streams is None or stream in self.handler.streams

    def start(self, stream: str) -> Start | None:
        """Where it starts in a stream; None for its worker's start."""
        return self._start_of.get(stream, self._start)

    def lock(self, key: Key) -> FairLock:
        """The lock held while the handler processes a batch of one writer of one stream."""
        found = self._locks.get(key)
        if found is None:
            found = self._locks[key] = FairLock(self._scheduler)
        return found

    def tracker(self, key: Key, earliest: bool) -> PositionTracker:
        """Its tracker of a (stream, writer); a new one begins where the handler is set to start.

        :param earliest: its worker starts at the oldest fact
        """
        found = self.trackers.get(key)
        if found is None:
            found = self.trackers[key] = self._new_tracker(key, earliest)
        return found

    def _new_tracker(self, key: Key, earliest: bool) -> PositionTracker:
        stream, writer = key
        whole = self.trackers.get((stream, LINEAR))
        if writer and whole is not None:  # a linear position holds for every writer
            return PositionTracker(whole.position, None, whole.started_from)
        recorded = [
            tracker
            for (of, _), tracker in self.trackers.items()
            if of == stream and tracker.recorded is not None
        ]
        if recorded:
            # Writers that existed when the handler began were announced then, so this one is
            # new and the handler gets all of its facts, wherever it was to start. A writer that
            # was silent then is cut off where the handler began with the others.
            begun_at = min(tracker.started_from or 0 for tracker in recorded)
            return PositionTracker(begun_at, None, begun_at, is_of_new_writer=True)
        start = self.start(stream)
        if start is None:
            start = StartAt.EARLIEST if earliest else StartAt.NOW
        if start is StartAt.NOW:
            return PositionTracker(None)
        position = 0 if start is StartAt.EARLIEST else start
        return PositionTracker(position, None, position)

    def resume(
        self, positions: Mapping[Key, PositionTracker], streams: Mapping[str, object]
    ) -> None:
        """Resume from recorded positions.

        :param streams: the streams whose positions depend on the view
        :raises ViewChanged: per-writer positions do not determine a linear one
        """
        for (stream, writer), tracker in positions.items():
            if self.linear and writer and stream in streams:
                raise ViewChanged(handler=self.name, stream=stream)
            tracker.is_resumed = True
            self.trackers[stream, writer] = tracker

    def describe_start(self, streams: Iterable[str]) -> str:
        """Where it starts in these streams as a new handler, for the log."""
        starts = {stream: self.start(stream) for stream in streams if self.receives(stream)}
        parts = []
        for start in dict.fromkeys(starts.values()):
            names = ", ".join(sorted(stream for stream, other in starts.items() if other == start))
            if start is StartAt.NOW:
                parts.append(
                    f"it starts at the worker's position in {names}, without earlier facts"
                )
            elif isinstance(start, int):
                parts.append(f"it starts at token {start} of {names}, without facts up to there")
            else:
                parts.append(f"it starts at the oldest fact of {names}")
        return "; ".join(parts) or "it receives nothing that this follower has seen"
