"""Decides which destinations are sent to now: those with something to get, those that come back in small numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf

from synrepl.core.clock import DelayedCall, Promise, Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.retry import BackOff
from synrepl.services.federation.sending.destination_queue import Away, DestinationQueue
from synrepl.services.federation.sending.journal import NotOwned
from synrepl.services.federation.sending.registry import DestinationRegistry
from synrepl.services.federation.sending.transactions import KnowsFailures, TransactionSender

#: Transactions of one destination after which others get their turn.
_IN_A_ROW = 10

#: Until the next attempt of a destination while the database is away.
_DATABASE_BACK_OFF = BackOff(1.0, 1.0)

#: The same after an error that nobody foresaw, in seconds.
_UNEXPECTED_S = 60.0


@dataclass(frozen=True, slots=True)
class SendingLimits:
    """Limits of what a process sends at the same time.

    :ivar in_flight: maximum number of transactions
    :ivar returning: maximum number of those to destinations that were away
    :ivar slow_s: seconds after which a transaction keeps no other from being sent
    :ivar most_in_flight: maximum number of transactions, with slow ones
    """

    in_flight: int = 200
    returning: int = 32
    slow_s: float = 5.0
    most_in_flight: int = 2_000


DEFAULT_SENDING_LIMITS = SendingLimits()


class _SendingTurn:
    """A destination that is sent to, and the place that it takes."""

    __slots__ = ("is_counted", "is_returning", "timer")

    def __init__(self, is_returning: bool) -> None:
        self.is_returning = is_returning
        self.is_counted = True
        self.timer: DelayedCall | None = None

    def cancel_timer(self) -> None:
        """It keeps its place, or has none."""
        if self.timer is not None and self.timer.active():
            self.timer.cancel()


class Dispatcher:
    """Sends to each destination that has something to get, one transaction after the other.

    A destination that is slow takes the place of another one for a few seconds only. One that is away costs nothing until
    its time has come, and those whose time has come take turns.

    :ivar last_error: why transactions cannot be read from the database now; None: nothing is wrong
    """

    def __init__(
        self,
        scheduler: Scheduler,
        registry: DestinationRegistry,
        transactions: TransactionSender,
        failures: KnowsFailures,
        log: Logger,
        limits: SendingLimits = DEFAULT_SENDING_LIMITS,
    ) -> None:
        self._scheduler = scheduler
        self._registry = registry
        self._transactions = transactions
        self._failures = failures
        self._log = log
        self._limits = limits
        self._ready: deque[DestinationQueue] = deque()
        self._returning: deque[DestinationQueue] = deque()
        self._away: list[tuple[float, int, DestinationQueue]] = []
        self._numbers = count()
        self._timer: DelayedCall | None = None
        self._timed_for = inf
        self._is_pumping = False
        self._is_stopped = False
        self._quiet: list[Promise[None]] = []
        #: Destinations with a transaction under way, also those that were lost meanwhile.
        self._sending: dict[str, _SendingTurn] = {}
        self.last_error: SynreplError | None = None
        self._counted = 0
        self._active_returning = 0

    # -- what has to be sent ----------------------------------------------------------------------

    def wake(self, queue: DestinationQueue) -> None:
        """A destination has something to get."""
        if self._is_stopped or queue.is_void:
            return
        self._registry.unfinished[queue.name] = queue
        if not queue.waiting_since:
            queue.waiting_since = self._scheduler.seconds()
        if queue.name in self._sending:
            return  # it is woken when that ends
        if not (queue.is_busy or queue.is_queued or queue.away is not None):
            queue.is_queued = True
            self._ready.append(queue)
            self._pump()

    def leave_alone(self, queue: DestinationQueue) -> None:
        """A destination is away; it is tried again when its time has come."""
        assert queue.away is not None
        self._registry.unfinished[queue.name] = queue
        heappush(self._away, (queue.away.until, next(self._numbers), queue))
        self._time()

    def is_up(self, name: str) -> None:
        """A destination may be back: try it now."""
        queue = self._registry.queue(name)
        if queue is None or queue.away is None or queue.is_busy or name in self._sending:
            return
        self._come_back(queue)
        if queue.has_work and not queue.is_queued:
            queue.is_queued = True
            self._ready.appendleft(queue)
            self._pump()

    def lose_all(self) -> None:
        """Nothing is owned any more."""
        self._ready.clear()
        self._returning.clear()
        self._away.clear()
        self._time()

    async def stop(self, within_s: float) -> bool:
        """Begin no more transactions, and wait for those under way; whether all have ended."""
        self._is_stopped = True
        self._ready.clear()
        self._returning.clear()
        self._away.clear()
        self._time()
        if self.active:
            quiet: Promise[None] = self._scheduler.promise()
            self._quiet.append(quiet)
            timer = self._scheduler.callLater(within_s, self._release_quiet)
            await quiet
            if timer.active():
                timer.cancel()
        for turn in self._sending.values():
            turn.cancel_timer()
        return not self.active

    @property
    def active(self) -> int:
        """Number of destinations that are sent to now."""
        return len(self._sending)

    @property
    def waiting(self) -> int:
        """Number of destinations that wait for their turn."""
        return len(self._ready) + len(self._returning)

    # -- those that are away ------------------------------------------------------------------------

    def _time(self) -> None:
        due = self._away[0][0] if self._away else inf
        if due == self._timed_for:
            return
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer, self._timed_for = None, due
        if due < inf:
            delay = max(0.0, due - self._scheduler.seconds())
            self._timer = self._scheduler.callLater(delay, self._due)

    def _due(self) -> None:
        self._timer, self._timed_for = None, inf
        now = self._scheduler.seconds()
        while self._away and self._away[0][0] <= now:
            until, _, queue = heappop(self._away)
            # It may have been tried meanwhile, and be away for longer.
            if queue.is_void or queue.away is None or queue.away.until > until:
                continue
            self._come_back(queue)
            is_free = not queue.is_queued and not queue.is_busy
            if queue.has_work and is_free and queue.name not in self._sending:
                queue.is_queued = True
                self._returning.append(queue)
        self._time()
        self._pump()

    def _come_back(self, queue: DestinationQueue) -> None:
        self._registry.unfinished[queue.name] = queue
        queue.comes_back(self._registry.fanned(queue))

    # -- turns ----------------------------------------------------------------------------------------

    def _pump(self) -> None:
        if not self._is_pumping and (self._ready or self._returning):
            self._is_pumping = True
            self._scheduler.spawn("send to other servers", self._begin_turns())

    async def _begin_turns(self) -> None:
        try:
            while True:
                await self._scheduler.sleep(0)
                returning = self._take(self._returning, self._free_returning())
                ready = self._take(self._ready, self._free())
                if not returning and not ready:
                    return
                for queue in returning:
                    self._begin(queue, is_returning=True)
                for queue in await self._well(ready):
                    self._begin(queue, is_returning=False)
        finally:
            self._is_pumping = False

    def _free(self) -> int:
        limits = self._limits
        return min(limits.in_flight - self._counted, limits.most_in_flight - self.active)

    def _free_returning(self) -> int:
        return min(self._limits.returning - self._active_returning, self._free())

    @staticmethod
    def _take(queues: deque[DestinationQueue], most: int) -> Sequence[DestinationQueue]:
        taken: list[DestinationQueue] = []
        while queues and len(taken) < most:
            queue = queues.popleft()
            queue.is_queued = False
            if not queue.is_void and queue.away is None:
                queue.is_busy = True
                taken.append(queue)
        return taken

    async def _well(self, queues: Sequence[DestinationQueue]) -> Sequence[DestinationQueue]:
        """Those of some destinations that have not failed lately; asked for all at once."""
        if len(queues) < 2:
            return queues
        try:
            failures = await self._failures.failures([queue.name for queue in queues])
        except SynreplError:  # each of them is looked at when it is sent to
            return queues
        now, well = self._scheduler.seconds(), []
        for queue in queues:
            failure = failures.get(queue.name)
            if failure is None or failure.retry_at_ms / 1000 <= now:
                well.append(queue)
                continue
            queue.is_busy = False
            if not queue.is_void:
                away = Away(failure.retry_at_ms / 1000, failure.reason, is_shared=True)
                queue.goes_away(away, self._registry.fanned(queue))
                self.leave_alone(queue)
        return well

    def _begin(self, queue: DestinationQueue, *, is_returning: bool) -> None:
        turn = _SendingTurn(is_returning)
        self._sending[queue.name] = turn
        self._counted += 1
        self._active_returning += is_returning
        self._scheduler.spawn(f"send to {queue.name}", self._serve(queue, turn))

    async def _serve(self, queue: DestinationQueue, turn: _SendingTurn) -> None:
        """Send transactions until there is nothing left, the destination is away, or others have their turn."""
        delay_s: float | None = _UNEXPECTED_S
        try:
            for _ in range(1 if turn.is_returning else _IN_A_ROW):
                if self._is_stopped or queue.is_void or not queue.has_work:
                    break
                self._count_again(turn)
                transaction = await self._transactions.next(queue)
                if transaction is None or queue.is_void or self._is_stopped:
                    break
                await self._transactions.send(queue, transaction)
                if queue.away is not None:
                    break
                queue.waiting_since = self._scheduler.seconds()
            self.last_error = delay_s = None
        except NotOwned:
            delay_s = None
        except SynreplError as error:
            delay_s = _DATABASE_BACK_OFF.delay_s(1, self._scheduler.random)
            if self.last_error is None:
                self._log.warn("nothing is sent to other servers now: {error}", error=error)
            self.last_error = error
        finally:
            self._end(queue, turn, delay_s)

    def _count_again(self, turn: _SendingTurn) -> None:
        """The next transaction takes a place, for some seconds."""
        if not turn.is_counted:
            turn.is_counted = True
            self._counted += 1
            self._active_returning += turn.is_returning
        turn.cancel_timer()
        turn.timer = self._scheduler.callLater(self._limits.slow_s, self._is_slow, turn)

    def _is_slow(self, turn: _SendingTurn) -> None:
        self._release(turn)
        self._pump()

    def _release(self, turn: _SendingTurn) -> None:
        if turn.is_counted:
            turn.is_counted = False
            self._counted -= 1
            self._active_returning -= turn.is_returning

    def _end(self, queue: DestinationQueue, turn: _SendingTurn, delay_s: float | None) -> None:
        turn.cancel_timer()
        self._release(turn)
        del self._sending[queue.name]
        queue.is_busy = False
        if not self._sending and self._quiet:
            self._release_quiet()
        if self._is_stopped:
            return
        if queue.is_void:
            successor = self._registry.queue(queue.name)
            if successor is not None and successor.has_work:
                self.wake(successor)
            self._pump()
            return
        if queue.away is not None:
            self.leave_alone(queue)
        elif not queue.has_work:
            queue.waiting_since = 0.0
        elif delay_s is not None:
            self._scheduler.spawn(f"send to {queue.name} again", self._wake_later(queue, delay_s))
        else:
            self.wake(queue)
        self._pump()

    async def _wake_later(self, queue: DestinationQueue, delay_s: float) -> None:
        await self._scheduler.sleep(delay_s)
        self.wake(queue)

    def _release_quiet(self) -> None:
        quiet, self._quiet = self._quiet, []
        for promise in quiet:
            promise.callback(None)
