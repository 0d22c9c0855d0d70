"""Passes each event to the queues of the servers that are to get it, in the order of the stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.retry import BackOff, Retry
from synrepl.core.slices import Slices
from synrepl.core.tokens import Token
from synrepl.core.wakeable_sleep import WakeableSleep
from synrepl.services.federation.sending.destination_queue import DestinationQueue
from synrepl.services.federation.sending.known_servers import KeptRoomServers
from synrepl.services.federation.sending.registry import DestinationRegistry
from synrepl.services.federation.sending.settled_bound import SettledBound
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.event_servers import EventServers, event_servers
from synrepl.storage.federation.outgoing_events import events_to_send
from synrepl.storage.federation.room_servers import ServersAtState

#: Maximum number of events of one page, and of stream IDs that it covers: there may be millions of events for nobody.
PAGE_EVENTS, PAGE_IDS = 200, 100_000

#: Seconds after which the stream is looked at though nothing was heard of it.
POLL_S = 5.0

#: Destinations for which passing an event on costs one unit of :class:`.Slices`.
_PER_UNIT = 100

#: While transactions that have taken tokens are still running.
_UNSETTLED = BackOff(0.005, 0.2)

_AWAY = BackOff(0.5, 10.0)


class EventFanOut:
    """Follows the events that this server sends.

    It reads up to where the stream is settled, so each event is passed on once and in order. Where each partition is, is
    in the registry.

    :param own: the name of this server
    :param wake: called with a queue that has something to send
    :ivar passed_on: number of events that were passed on
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        own: str,
        registry: DestinationRegistry,
        settled: SettledBound,
        wake: Callable[[DestinationQueue], object],
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._slices = Slices(scheduler)
        self._database = database
        self._own = own
        self._registry = registry
        self._settled = settled
        self._wake = wake
        self._log = log
        self._rooms = KeptRoomServers()
        self._wanted: Token = 0
        self._is_due = self._is_polling = False
        self._sleep = WakeableSleep(scheduler)
        self._is_stopped = False
        self.passed_on = 0
        self.last_error: SynreplError | None = None

    def advanced(self, token: Token) -> None:
        """There may be events up to a token, or partitions that are behind."""
        self._wanted = max(self._wanted, token)
        self._is_due = True
        self._sleep.wake()

    def stop(self) -> None:
        """Pass on no more."""
        self._is_stopped = True
        self._sleep.wake()

    async def run(self) -> None:
        """Follow, until it is stopped."""
        away, unsettled = (Retry(each, self._scheduler.random) for each in (_AWAY, _UNSETTLED))
        while not self._is_stopped:
            if not self._is_due:
                if not await self._sleep.sleep(POLL_S):
                    self._is_due = self._is_polling = True
                continue
            self._is_due = False
            wanted = self._wanted
            try:
                reached = await self._follow(wanted)
            except SynreplError as error:
                if self.last_error is None:
                    self._log.warn("events to send cannot be read: {error}", error=error)
                self.last_error = error
                self._is_due = True
                await self._scheduler.sleep(away.failed())
                continue
            self.last_error = None
            away.succeeded()
            if reached < wanted:
                self._is_due = True
                await self._scheduler.sleep(unsettled.failed())
            else:
                unsettled.succeeded()

    async def _follow(self, wanted: Token) -> Token:
        """Pass on what is settled; returns how far that is."""
        if not self._registry.partitions:
            return wanted
        is_polling, self._is_polling = self._is_polling, False
        upto = await self._settled.upto(0 if is_polling else wanted)
        while True:
            behind = [p.fanned for p in self._registry.partitions.values() if p.fanned < upto]
            if not behind:
                return upto
            await self._page(min(behind), upto)

    async def _page(self, after: Token, upto: Token) -> None:
        known, upto = self._rooms.known, min(upto, after + PAGE_IDS)

        def work(
            txn: Transaction,
        ) -> tuple[Token, Sequence[EventServers], Mapping[int, ServersAtState]]:
            events = events_to_send(txn, after, upto, PAGE_EVENTS)
            reached = events[-1].stream_id if len(events) == PAGE_EVENTS else upto
            return (reached, *event_servers(txn, events, known, self._own))

        reached, events, rooms = await self._database.run(
            "read events to send", work, read_only=True
        )
        self._rooms.keep(rooms)
        for each in events:
            await self._slices.step(1 + len(each.in_room) // _PER_UNIT)
            self._pass_on(each, after)
            self._move(after, each.stream_id)
        self._move(after, reached)

    def _pass_on(self, servers: EventServers, after: Token) -> None:
        stream_id, partitions = servers.stream_id, self._registry.partitions
        self.passed_on += 1
        for queue in self._registry.targets(servers):
            # A partition that was claimed meanwhile may have to begin further back.
            if after <= partitions[queue.partition].fanned < stream_id and queue.add(stream_id):
                self._wake(queue)

    def _move(self, after: Token, reached: Token) -> None:
        """Note how far events were passed on: only of partitions that were there from the beginning of the page."""
        for partition in self._registry.partitions.values():
            if after <= partition.fanned < reached:
                partition.fanned = reached
