"""Batches go to handlers, and positions go on record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Token
from synrepl.services.announcing.announce import Log
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.handlers import Batch, Handler, TransactionalHandler
from synrepl.services.waiting.position_waiters import Key, PositionWaiters
from synrepl.storage import followers
from synrepl.storage.database import Database, Transaction
from synrepl.wire.commands import Command

H = TypeVar("H", bound=Handler)

_BACK_OFF_S = (0.5, 1.0, 2.0, 5.0, 15.0)


class Delivery:
    """Hands batches to handlers, one at a time per handler lane, until they succeed.

    :param follower: the name under which positions go on record; None keeps none
    :param database: where the record is, and where transactional handlers work;
        None for a follower without one
    :param waiters: told of every position that has moved
    :param coherence: applies facts to the caches of the process before its handlers,
        and again after those that change the database
    :ivar failing: by stream and writer, whose work fails now and is tried again
    """

    def __init__(
        self,
        scheduler: Scheduler,
        handlers: Sequence[Handler],
        log: Log,
        follower: str | None = None,
        database: Database | None = None,
        waiters: PositionWaiters | None = None,
        coherence: Coherence | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._log = log
        self._follower = follower if database is not None else None
        self._database = database
        self._waiters = waiters
        self._coherence = coherence
        self._plain = [h for h in handlers if not isinstance(h, TransactionalHandler)]
        self._transactional = [h for h in handlers if isinstance(h, TransactionalHandler)]
        self._all = list(handlers)
        self._changed: dict[Key, Token] = {}
        self.recorded: dict[Key, Token] = {}
        self.failing: dict[Key, str] = {}
        self.failures = 0

    async def start(self) -> None:
        """Read the positions on record."""
        if self._database is not None and self._follower is not None:
            follower = self._follower
            self.recorded = await self._database.run(
                "follower_positions",
                lambda txn: followers.positions(txn, follower),
                read_only=True,
            )

    async def rows(self, batch: Batch) -> None:
        """Have every handler deal with a batch; tried again until it succeeds."""
        key = (batch.stream, batch.writer)
        self._make_stale(batch)
        if transactional := _of_stream(self._transactional, batch.stream):
            who = _names(transactional)
            await self._until_done(key, who, batch, lambda: self._apply(batch, transactional))
            self._make_stale(batch)  # what was loaded again meanwhile is older than this commit
        for handler in _of_stream(self._plain, batch.stream):
            deal = partial(handler.on_rows, batch)
            await self._until_done(key, _names([handler]), batch, deal)

    def _make_stale(self, batch: Batch) -> None:
        if self._coherence is not None:
            self._coherence.apply(batch.stream, batch.writer, batch.after, batch.facts)

    def command(self, command: Command) -> None:
        """Pass on what is not about streams."""
        if self._all:
            self._scheduler.spawn("handle a command", self._command(command))

    async def reset(self, stream: str, writer: str, position: Token) -> None:
        """Tell every handler that a writer started again, or that facts are gone for good."""
        key = (stream, writer)
        self.recorded.pop(key, None)
        self._changed.pop(key, None)
        if self._coherence is not None:
            self._coherence.reset(stream, writer, position)
        what = f"a reset of {stream} by {writer}"
        await self._until_done(key, "the record", what, lambda: self._forget(stream, writer))
        for handler in _of_stream(self._all, stream):
            deal = partial(handler.on_reset, stream, writer, position)
            await self._until_done(key, _names([handler]), what, deal)

    async def _forget(self, stream: str, writer: str) -> None:
        if self._database is not None and self._follower is not None:
            follower = self._follower
            await self._database.run(
                "forget_position", lambda txn: followers.forget(txn, follower, stream, writer)
            )

    def moved(self, key: Key, position: Token | None) -> None:
        """A lane's position moved; it goes on record with the next :meth:`record`."""
        if position is None:
            return
        if self._coherence is not None:
            self._coherence.begin(*key, position)
        if self.recorded.get(key, -1) < position:
            self._changed[key] = position
        if self._waiters is not None:
            self._waiters.moved(key, position)

    async def record(self) -> None:
        """Put on record what moved since the last time.

        :raises SynreplError: when that failed; it will be tried with the next call
        """
        if self._database is None or self._follower is None or not self._changed:
            return
        follower, changed = self._follower, dict(self._changed)
        await self._database.run(
            "record_follower", lambda txn: followers.record(txn, follower, changed)
        )
        for key, position in changed.items():
            self.recorded[key] = max(position, self.recorded.get(key, 0))
            if self._changed.get(key) == position:
                del self._changed[key]

    async def _command(self, command: Command) -> None:
        for handler in self._all:
            await handler.on_command("master", command)

    async def _until_done(
        self, key: Key, who: str, what: object, deal: Callable[[], Awaitable[None]]
    ) -> None:
        attempt = 0
        while True:
            try:
                await deal()
                self.failing.pop(key, None)
                return
            except Exception as error:  # a user's handler may raise anything
                self.failures += 1
                self.failing[key] = f"{who} fails with {type(error).__name__}; the log has more"
                self._log.warn(
                    "handling {what} failed: {error!r}; trying again", what=what, error=error
                )
                await self._scheduler.sleep(_BACK_OFF_S[min(attempt, len(_BACK_OFF_S) - 1)])
                attempt += 1

    async def _apply(self, batch: Batch, handlers: Sequence[TransactionalHandler]) -> None:
        """One transaction: the effects of these handlers, and the position."""
        assert self._database is not None
        assert self._follower is not None
        follower = self._follower
        key = (batch.stream, batch.writer)
        known = min(batch.after, self.recorded.get(key, batch.after))

        def work(txn: Transaction) -> None:
            todo = _still_to_do(txn, follower, batch, known) if batch.ordered else batch
            if todo is None:
                return
            for handler in handlers:
                handler.apply(txn, todo)

        await self._database.run("apply", work)
        if not batch.ordered:  # its tokens say nothing; the lane says when it has moved
            return
        self.recorded[key] = max(batch.upto, self.recorded.get(key, 0))


def _of_stream(handlers: Sequence[H], stream: str) -> list[H]:
    """Those that receive a stream."""
    return [h for h in handlers if h.streams is None or stream in h.streams]


def _names(handlers: Sequence[Handler]) -> str:
    return ", ".join(type(handler).__name__ for handler in handlers)


def _still_to_do(txn: Transaction, follower: str, batch: Batch, known: Token) -> Batch | None:
    """Move the position on record past a batch; what of the batch was not applied before.

    The record, not the caller's memory, says what was applied: a commit whose
    answer was lost shows here.

    :param known: what the record is known to be, at least; it stays below
        ``batch.after`` for a while when a position has moved past no facts
    """
    if followers.advance(txn, follower, batch.stream, batch.writer, known, batch.upto):
        return batch
    at = followers.positions(txn, follower).get((batch.stream, batch.writer), 0)
    if at >= batch.upto:
        return None
    if at < known:
        raise PositionWentBack(
            follower=follower, stream=batch.stream, writer=batch.writer, at=at, after=known
        )
    followers.advance(txn, follower, batch.stream, batch.writer, at, batch.upto)
    facts = [fact for fact in batch.facts if fact.token > at]
    return Batch(batch.stream, batch.writer, at, batch.upto, facts)


class PositionWentBack(SynreplError):
    """follower {follower!r} stands at {at} of {stream!r} ({writer!r}) on record, below {after}, from where it received; another process uses its name, or the database was restored: restart this worker"""
