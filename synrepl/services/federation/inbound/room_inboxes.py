"""Judges the events that other servers send, one batch of a room at a time.

Events come straight from a transaction, or from the table in which another process has staged them. Whatever comes
while a batch is persisted makes up the next one, so a busy room takes few transactions.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Protocol

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import SynreplError, Unavailable
from synrepl.core.log import Logger
from synrepl.core.semaphore import Semaphore
from synrepl.rooms import BadEvent, Event, parse_event, room_version
from synrepl.services.rooms.persister import RoomPersister
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.staged_events import StagedEvent, staged_page, unstage
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent, PersistedEvent
from synrepl.storage.rooms.tables.numbers import find_room
from synrepl.storage.rooms.tables.pending_rows import PendingRows

#: Events of one batch, and staged events that are read at once.
MAX_BATCH_EVENTS = 500

#: Bytes of events that wait in one room; others are staged.
MAX_INBOX_BYTES = 16 * 2**20

#: Rooms whose events are judged at once. In those that wait for their turn, batches grow.
MAX_ROOMS = 4

#: Seconds after which a room that is still being judged holds up others no longer.
SLOW_S = 0.5

#: Seconds after which whatever waits for a verdict would have been given up by everybody.
_FOREVER_S = 3600.0


class RoomInboxFull(Unavailable):
    """too many events of other servers wait to be judged in room {room_id}; try again later"""


class GapListener(Protocol):
    """Is told of rooms in which events wait for others."""

    def gap_found(self, room_id: str, origin: str) -> None:
        """Events of a room wait for events that are missing.

        :param origin: the server that sent one of them
        """


class ReceivedEvents(NamedTuple):
    """Events of one room that passed checks 1 to 3.

    :ivar version: of the room
    :ivar origin: the server that sent them
    """

    room_id: str
    version: str
    origin: str
    events: Sequence[Event]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(len(each.raw) for each in self.events)


class JudgedEvents(NamedTuple):
    """The outcomes of :class:`ReceivedEvents`.

    :ivar events: in their order; empty with an error
    :ivar error: why none was judged
    """

    events: Sequence[PersistedEvent]
    error: SynreplError | None = None


class _Offer:
    """Events that wait to be judged, and who waits for that.

    :ivar promise: the outcomes; None: they take too long
    """

    def __init__(self, scheduler: Scheduler, received: ReceivedEvents, wait_s: float) -> None:
        self.received = received
        self.promise: Promise[JudgedEvents | None] = scheduler.promise()
        self._timer = scheduler.callLater(wait_s, self.settle, None)
        self._is_settled = False

    def settle(self, result: JudgedEvents | None) -> None:
        """Tell who waits. Only the first result counts."""
        if not self._is_settled:
            self._is_settled = True
            if self._timer.active():
                self._timer.cancel()
            self.promise.callback(result)


class _Inbox:
    """What waits in one room.

    :ivar size: bytes of the offers
    :ivar has_staged: whether there may be staged events
    """

    def __init__(self) -> None:
        self.offers: deque[_Offer] = deque()
        self.size = 0
        self.has_staged = False

    def take(self) -> list[_Offer]:
        """The next offers, as many as make up a batch."""
        taken: list[_Offer] = []
        count = 0
        while self.offers and (not taken or count < MAX_BATCH_EVENTS):
            taken.append(self.offers.popleft())
            count += len(taken[-1].received.events)
            self.size -= taken[-1].received.size
        return taken


class _PlaceAmongRooms:
    """A place among the rooms that are judged at once, which ends early where judging takes long."""

    def __init__(self, scheduler: Scheduler, places: Semaphore) -> None:
        self._scheduler = scheduler
        self._places = places

    async def __aenter__(self) -> None:
        await self._places.acquire()
        self._timer = self._scheduler.callLater(SLOW_S, self._places.release)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer.active():
            self._timer.cancel()
            await self._places.__aexit__(kind, error, trace)


class RoomInboxes:
    """The inboxes of the rooms that are assigned to this process.

    :param gaps: is told of rooms in which events wait for others
    :ivar outcomes: number of events by outcome
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        persister: RoomPersister,
        gaps: GapListener,
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._persister = persister
        self._gaps = gaps
        self._log = log
        self._inboxes: dict[str, _Inbox] = {}
        self._turns = Semaphore(scheduler, MAX_ROOMS)
        self.outcomes: Counter[str] = Counter()

    @property
    def waiting(self) -> tuple[int, int]:
        """The number of events that wait in this process, and their size in bytes."""
        inboxes = self._inboxes.values()
        events = sum(len(o.received.events) for each in inboxes for o in each.offers)
        return events, sum(each.size for each in inboxes)

    @property
    def is_busy(self) -> bool:
        """Whether events of any room are being judged."""
        return bool(self._inboxes)

    async def judge(self, received: ReceivedEvents) -> JudgedEvents:
        """Have events judged after those that wait in their room, however long it takes.

        :raises RoomInboxFull: too much waits
        """
        result = await self.offer(received, _FOREVER_S)
        if result is None:
            raise RoomInboxFull(room_id=received.room_id)
        return result

    def offer(self, received: ReceivedEvents, wait_s: float) -> Promise[JudgedEvents | None]:
        """Have events judged after those that wait in their room.

        :param wait_s: seconds after which the result is None, although the events are judged later
        :returns: the outcomes; None also where too much waits, and then the events are not judged
        """
        offer = _Offer(self._scheduler, received, wait_s)
        inbox = self._inboxes.get(received.room_id)
        if inbox is not None and inbox.size and inbox.size + received.size > MAX_INBOX_BYTES:
            offer.settle(None)
            return offer.promise
        inbox = self._started(received.room_id)
        inbox.offers.append(offer)
        inbox.size += received.size
        return offer.promise

    def wake(self, room_id: str) -> None:
        """Judge the staged events of a room."""
        self._started(room_id).has_staged = True

    def _started(self, room_id: str) -> _Inbox:
        inbox = self._inboxes.get(room_id)
        if inbox is None:
            inbox = self._inboxes[room_id] = _Inbox()
            self._scheduler.spawn(f"judge events of {room_id}", self._run(room_id, inbox))
        return inbox

    async def _run(self, room_id: str, inbox: _Inbox) -> None:
        await self._scheduler.sleep(0)  # what comes in this turn makes up one batch
        try:
            while inbox.offers or inbox.has_staged:
                async with _PlaceAmongRooms(self._scheduler, self._turns):
                    await self._judge_next(room_id, inbox)
        finally:
            del self._inboxes[room_id]

    async def _judge_next(self, room_id: str, inbox: _Inbox) -> None:
        if inbox.has_staged:
            inbox.has_staged = False
            if await self._judge_staged(room_id):
                inbox.has_staged = True  # it may have become so meanwhile, too
        offers = inbox.take()
        if offers:
            await self._judge_offers(room_id, offers)

    async def _judge_offers(self, room_id: str, offers: Sequence[_Offer]) -> None:
        version = offers[0].received.version
        incoming = [IncomingEvent(event) for each in offers for event in each.received.events]
        try:
            done = (await self._persister.persist(room_id, version, incoming)).events
        except SynreplError as error:
            for each in offers:
                each.settle(JudgedEvents((), error))
            return
        at = 0
        for each in offers:
            count = len(each.received.events)
            self._note(room_id, each.received.origin, done[at : at + count])
            each.settle(JudgedEvents(done[at : at + count]))
            at += count

    def _note(self, room_id: str, origin: str, done: Sequence[PersistedEvent]) -> None:
        self.outcomes.update(each.outcome.value for each in done)
        if any(each.outcome is EventOutcome.WAITING for each in done):
            self._gaps.gap_found(room_id, origin)

    # -- staged events --------------------------------------------------------------------

    async def _judge_staged(self, room_id: str) -> bool:
        """Judge the staged events of a room that have waited longest; returns whether there may be more.

        After an error they remain, and are judged when the room is woken again.
        """
        try:
            return await self._judge_page(room_id)
        except SynreplError as error:
            self._log.warn(
                "cannot judge events of {room_id} now: {error}", room_id=room_id, error=error
            )
            return False

    async def _judge_page(self, room_id: str) -> bool:
        def read(txn: Transaction) -> tuple[str, list[StagedEvent]]:
            room = find_room(txn, room_id)
            if room is None:
                return "", []
            return room.version, staged_page(txn, room.room_no, MAX_BATCH_EVENTS)

        version, staged = await self._database.run("read staged events", read, read_only=True)
        incoming: list[IncomingEvent] = []
        origins: dict[str, str] = {}
        unusable: list[str] = []
        for each in staged:
            try:
                event = parse_event(each.raw, room_version(version))
            except BadEvent:  # the rules of another release were not as strict
                unusable.append(each.event_id)
                continue
            incoming.append(IncomingEvent(event))
            origins[event.event_id] = each.origin

        def also(rows: PendingRows, room_no: int, done: Sequence[PersistedEvent]) -> None:
            unstage(rows, room_no, [each.event_id for each in done])

        if incoming:
            done = (await self._persister.persist(room_id, version, incoming, also)).events
            unusable += [e.event_id for e in done if e.outcome is EventOutcome.REFUSED]
            for judged in done:
                self._note(room_id, origins[judged.event_id], [judged])
        if unusable:
            await self._discard(staged[0].room_no, unusable)
        return len(staged) == MAX_BATCH_EVENTS

    async def _discard(self, room_no: int, event_ids: Sequence[str]) -> None:
        """Delete staged events of which nothing was stored."""

        def work(txn: Transaction) -> None:
            rows = PendingRows()
            unstage(rows, room_no, event_ids)
            rows.flush(txn)

        await self._database.run("discard staged events", work)
