"""The handlers of a process, and how far each is with each writer of its streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import ConfigError
from synrepl.core.tokens import Token
from synrepl.services.following.source import LINEAR, Key
from synrepl.services.handlers import Batch, Handler, TransactionalHandler


class StartAt(StrEnum):
    """Where a handler without a position begins."""

    #: At the first fact that there is.
    EARLIEST = "earliest"
    #: Where its worker is.
    NOW = "now"


#: A token: it is given what is above that.
Start = StartAt | Token


class ViewChanged(ConfigError):
    """handler {handler!r} has positions of single writers of {stream!r} on record, and its view is linear now: give it another 'name', and a 'start'"""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A handler, and how it is to be served.

    :ivar name: under which its positions are kept; None for the path of its class
    :ivar start: where it begins; None as its worker
    :ivar start_of: the same of single streams, by name
    :ivar attempts: after how many attempts a fact is set aside as a dead letter; None
        for never
    """

    handler: Handler
    name: str | None = None
    start: Start | None = None
    start_of: Mapping[str, Start] = field(default_factory=dict)
    attempts: int | None = None


class Feed(Protocol):
    """What feeds a handler that is not where the lane is."""

    def wake(self) -> None:
        """The lane has moved."""

    async def arrival(self) -> None:
        """Returns once the handler has reached the lane, if it is near."""


class Turns:
    """Lets one at a time hand batches to a handler, in the order in which they came."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._taken = False
        self._waiting: deque[Promise[None]] = deque()

    async def __aenter__(self) -> None:
        if self._taken:
            waiting: Promise[None] = self._scheduler.promise()
            self._waiting.append(waiting)
            await waiting
        self._taken = True

    async def __aexit__(self, *error: object) -> None:
        if self._waiting:
            self._waiting.popleft().callback(None)
        else:
            self._taken = False


class Track:
    """Where one handler is with one writer of one stream.

    :ivar position: it has dealt with everything at or below it; None as long as it
        begins wherever the lane is
    :ivar recorded: the same on record; None before it is
    :ivar started_from: it was given nothing at or below it; None when that is not known
    :ivar feed: what feeds it, while that is not the lane
    :ivar in_transaction: a transaction that moves the position on record is under way
    """

    __slots__ = ("feed", "in_transaction", "position", "recorded", "started_from")

    def __init__(
        self,
        position: Token | None,
        recorded: Token | None = None,
        started_from: Token | None = None,
    ) -> None:
        self.position = position
        self.recorded = recorded
        self.started_from = started_from
        self.feed: Feed | None = None
        self.in_transaction = False

    @property
    def has_begun(self) -> bool:
        """It had a position before, so what lies below may have been of use."""
        return self.recorded is not None or bool(self.position)

    @property
    def is_proven(self) -> bool:
        """Its writer has been at the position: a token that somebody wrote down proves nothing."""
        return self.position == 0 or self.position not in (None, self.started_from)

    def begin(self, position: Token) -> None:
        """Begin here, unless it has begun."""
        if self.position is None:
            self.position = self.started_from = position

    def reach(self, position: Token) -> None:
        """Everything at or below ``position`` is dealt with."""
        if self.position is None or position > self.position:
            self.position = position

    def rest(self, batch: Batch) -> Batch | None:
        """What of a batch it has not dealt with; None for nothing."""
        at = self.position
        if at is None or at <= batch.after or not batch.ordered:
            return batch
        facts = [fact for fact in batch.facts if fact.token > at]
        return replace(batch, after=at, facts=facts) if facts else None


class Consumer:
    """A handler of this process.

    :param linear: the connection gives the linear view
    :ivar attempts: after how many attempts a fact is set aside; None for never
    :ivar linear: it gets the linear view, of streams that are not kept in memory
    :ivar tracks: where it is, by stream and writer
    """

    def __init__(self, subscription: Subscription, scheduler: Scheduler, linear: bool) -> None:
        handler = self.handler = subscription.handler
        cls = type(handler)
        self.name = subscription.name or f"{cls.__module__}:{cls.__qualname__}"
        self.attempts = subscription.attempts
        self.linear = linear if handler.view is None else handler.view == "linear"
        self.has_other_view = self.linear is not linear
        self.tracks: dict[Key, Track] = {}
        self._start = subscription.start
        self._start_of = subscription.start_of
        self._scheduler = scheduler
        self._turns: dict[Key, Turns] = {}

    @property
    def is_transactional(self) -> bool:
        """Its effects and its position commit together."""
        return isinstance(self.handler, TransactionalHandler)

    def receives(self, stream: str) -> bool:
        """Whether it wants facts of a stream."""
        return self.handler.streams is None or stream in self.handler.streams

    def start(self, stream: str) -> Start | None:
        """Where it begins in a stream; None as its worker."""
        return self._start_of.get(stream, self._start)

    def turns(self, key: Key) -> Turns:
        """Who hands it batches of one writer of one stream."""
        found = self._turns.get(key)
        if found is None:
            found = self._turns[key] = Turns(self._scheduler)
        return found

    def track(self, key: Key, earliest: bool) -> Track:
        """Where it is with a writer; begun as it is to begin when that is not known.

        :param earliest: its worker begins with the first fact that there is
        """
        found = self.tracks.get(key)
        if found is None:
            found = self.tracks[key] = self._begin(key, earliest)
        return found

    def _begin(self, key: Key, earliest: bool) -> Track:
        stream, writer = key
        whole = self.tracks.get((stream, LINEAR))
        if writer and whole is not None:  # it had the linear view, so it has that of each writer
            return Track(whole.position, None, whole.started_from)
        start = self.start(stream)
        if start is None:
            start = StartAt.EARLIEST if earliest else StartAt.NOW
        if start is StartAt.NOW:
            return Track(None)
        position = 0 if start is StartAt.EARLIEST else start
        return Track(position, None, position)

    def take_over(self, positions: Mapping[Key, Track], streams: Mapping[str, object]) -> None:
        """Go on from what is on record.

        :param streams: whose positions depend on the view
        :raises ViewChanged: the record is of the other view, and says too little for this one
        """
        for (stream, writer), track in positions.items():
            if self.linear and writer and stream in streams:
                raise ViewChanged(handler=self.name, stream=stream)
            self.tracks[stream, writer] = track
