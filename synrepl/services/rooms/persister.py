"""Persists events of rooms: each batch of a room in one transaction with all that it changes."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.semaphore import Semaphore
from synrepl.rooms import EventBuilder, canonical_json
from synrepl.services.rooms.room_queues import DEFAULT_QUEUE_LIMITS, QueueLimits, RoomQueues
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import ConstraintViolation, Transaction, UniqueViolation
from synrepl.storage.outbox import NotNamed, Outbox
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.persisting.limits import (
    DEFAULT_LIMITS,
    ResolutionTooLarge,
    RoomLimits,
    TooManyExtremities,
)
from synrepl.storage.rooms.persisting.persist_run import (
    AlsoWrite,
    PersistRun,
    RoomNotAsRemembered,
)
from synrepl.storage.rooms.persisting.room_memory import MAX_ROOMS, RoomMemories
from synrepl.storage.rooms.persisting.send_run import OutgoingEvent, SendRun
from synrepl.storage.rooms.states.state_groups import CorruptState
from synrepl.storage.rooms.tables.events import CorruptEvent, MissingJson
from synrepl.storage.rooms.tables.incoming import (
    EventOutcome,
    IncomingEvent,
    PersistedBatch,
    PersistedEvent,
)
from synrepl.storage.rooms.tables.numbers import NumberWithoutRow, OtherRoomVersion
from synrepl.storage.rooms.tables.partial_rooms import PARTIAL_ROOM_CONSTRAINT
from synrepl.storage.rooms.tables.sent_events import SENT_CONSTRAINT
from synrepl.storage.short_work import NotShort
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.backfill import BACKFILL
from synrepl.streams.synapse.caches import CACHES
from synrepl.streams.synapse.events import EVENTS

T = TypeVar("T")
_Run = TypeVar("_Run", bound=PersistRun)

#: Makes the run of a transaction, given what is remembered of rooms, their numbers, and their limits.
MakeRun = Callable[[RoomMemories, Mapping[str, int], RoomLimits], _Run]

#: Maximum number of events in one transaction. Larger batches are split.
MAX_BATCH = 1_000

#: Rooms whose number is remembered.
MAX_ROOM_NUMBERS = 100_000

#: The limits that are counted, by the error of what exceeds them.
_LIMITS: dict[type[Exception] | type[None], str] = {
    TooManyExtremities: "max_extremities",
    ResolutionTooLarge: "max_resolved",
}

#: A batch is persisted again when another process has just made the room, or an event with the same chosen ID, or
#: completed the room.
_ATTEMPTS = 3

#: Errors that are about one room: others can be persisted all the same.
_ROOM_ERRORS = (
    OtherRoomVersion,
    CorruptEvent,
    CorruptState,
    MissingJson,
    NumberWithoutRow,
)


class IncomingBatch(NamedTuple):
    """Events of one room.

    :ivar version: of the room
    :ivar also: adds what else is written in the transaction, or in each of several
    """

    room_id: str
    version: str
    events: Sequence[IncomingEvent]
    also: AlsoWrite | None = None


class _Persisted(NamedTuple):
    """What was persisted of a batch, and the error of the room that ended it."""

    last: PersistedBatch | None
    given: list[PersistedEvent]
    judged: list[PersistedEvent]
    error: SynreplError | None


class RoomPersister:
    """Judges and stores the events of rooms.

    Any number of processes may persist, also into the same room: a transaction holds the room's lock. One
    that meets a room which another process has changed reads what it needs again.

    :param writer: a writer of the streams ``events``, ``backfill`` and ``caches``
    :param max_rooms: maximum number of rooms with cached state between batches
    :param limits: of each room
    :param queue_limits: of what waits to be persisted in each room
    :ivar memories: what it keeps about rooms between batches
    :ivar queues: the batches that wait
    """

    def __init__(
        self,
        scheduler: Scheduler,
        writer: StreamWriter,
        max_rooms: int = MAX_ROOMS,
        limits: RoomLimits = DEFAULT_LIMITS,
        queue_limits: QueueLimits = DEFAULT_QUEUE_LIMITS,
    ) -> None:
        self._scheduler = scheduler
        self._writer = writer
        self._limits = limits
        self._refused: Counter[str] = Counter(dict.fromkeys(_LIMITS.values(), 0))
        self.queues = RoomQueues(scheduler, queue_limits)
        self.memories = RoomMemories(max_rooms)
        self._room_nos: OrderedDict[str, int] = OrderedDict()

    @property
    def refused(self) -> Mapping[str, int]:
        """Refusals by the name of the limit: of events by a limit of the room, of batches by one of its queue."""
        return {**self._refused, **self.queues.refused}

    async def persist(
        self,
        room_id: str,
        version: str,
        events: Sequence[IncomingEvent],
        also: AlsoWrite | None = None,
    ) -> PersistedBatch:
        """Persist events of one room, in their order.

        An event that is here already stays as it is, so a batch may be given again whenever it is not known
        whether it was persisted. An event whose parents are missing waits in a table, and is judged in the
        transaction that brings the last of them.

        Where the states at the forward extremities would be too much to resolve after a batch, it is persisted
        in halves: only an event that alone, with those that waited for it, is too much gets
        ``ResolutionTooLarge`` as its error.

        :param version: of the room
        :param also: adds what else is written in the transaction, or in each of several; what it raises, this does
        :returns: the outcome of each event, and of the others that waited for them
        :raises UnknownRoomVersion: there is no such room version
        :raises OtherRoomVersion: the room is stored with another version
        :raises CorruptEvent: :raises CorruptState: what is stored of the room is damaged
        :raises RoomQueueFull: too much waits to be persisted in the room
        :raises SynreplError: the errors of :meth:`.StreamWriter.transact`; after ``CommitUnknown``, give the
            events again
        """
        batch = IncomingBatch(room_id, version, events, also)
        with self.queues.entered({room_id: _size(batch)}) as (turn,):
            done = await self._persist_parts(turn, batch)
        if done.error is not None:
            raise done.error
        assert done.last is not None
        return done.last._replace(events=done.given, judged=done.judged)

    async def persist_rooms(
        self, batches: Sequence[IncomingBatch]
    ) -> tuple[list[list[PersistedEvent]], list[PersistedEvent]]:
        """Persist events of several rooms, as :meth:`persist` does, one room after the other.

        What is wrong with one room refuses what remains of its events, and the others are persisted. Any
        other error ends it, after some of the rooms.

        :param batches: one for each room
        :returns: the outcomes of the events of each batch, and the events that were judged
        :raises RoomQueueFull: too much waits in one of the rooms; nothing was persisted
        :raises SynreplError: the errors of :meth:`persist`; one about a room only if no event was persisted, or
            if it met events that had waited
        """
        outcomes: list[list[PersistedEvent]] = []
        judged: list[PersistedEvent] = []
        error: SynreplError | None = None
        unreported: SynreplError | None = None
        is_any_persisted = False
        with self.queues.entered({each.room_id: _size(each) for each in batches}) as turns:
            for turn, batch in zip(turns, batches, strict=True):
                done = await self._persist_parts(turn, batch)
                refused = [
                    PersistedEvent(each.event.event_id, EventOutcome.REFUSED, error=done.error)
                    for each in batch.events[len(done.given) :]
                ]
                outcomes.append([*done.given, *refused])
                judged += done.judged
                is_any_persisted |= bool(done.given)
                if done.error is not None and not refused:
                    unreported = done.error  # an event that waited met it
                error = error or done.error
        if not is_any_persisted:
            unreported = unreported or error
        if unreported is not None:
            raise unreported
        return outcomes, judged

    async def send(
        self, room_id: str, builder: EventBuilder, outgoing: OutgoingEvent
    ) -> PersistedEvent:
        """Build an event on top of a room, and persist it if it is allowed, in one turn of the room.

        :raises UnknownRoom: :raises RoomQueueFull:
        :raises EventNotAllowed: the rules refuse it, or a condition is not met; nothing was stored
        :raises BadEvent: :raises NoCanonicalJson: :raises NotStorable: its content is not acceptable
        :raises RedactedEventUnknown: what it redacts is not in the room
        :raises UniqueViolation: of :data:`.SENT_CONSTRAINT`: its request was made before
        :raises SynreplError: the errors of :meth:`persist`
        """

        def make(reserves_early: bool) -> SendRun:
            return SendRun(
                room_id,
                builder,
                outgoing,
                self.memories,
                self._room_nos,
                self._limits,
                reserves_early,
            )

        streams = [EVENTS] if outgoing.draft.state_key is None else [EVENTS, CACHES]
        size = len(canonical_json(outgoing.draft.content))
        with self.queues.entered({room_id: size}) as (turn,):
            async with turn:
                done, run = await self._commit(room_id, streams, make)
        if run.refused is not None:
            raise run.refused
        (sent,) = done.events
        return sent

    def began_at(self, room_id: str, stream_id: int) -> int:
        """Up to which stream ordering events of a room may be of other writers.

        :param stream_id: of an event that this process has just persisted
        """
        memory = self.memories.remembered(room_id)
        return stream_id if memory is None else memory.began_at

    async def run(
        self, room_id: str, size: int, streams: Sequence[Stream], make: MakeRun[_Run]
    ) -> tuple[PersistedBatch, _Run]:
        """Persist in another way than :meth:`persist` does, in one turn of the room.

        :param size: bytes of what is persisted, for the limits of the room's queue
        :param make: makes the run of a transaction
        :raises RoomQueueFull: too much waits to be persisted in the room
        :raises SynreplError: the errors of the run, and of :meth:`.StreamWriter.transact`
        """
        with self.queues.entered({room_id: size}) as (turn,):
            async with turn:
                return await self._commit(
                    room_id, streams, lambda _: make(self.memories, self._room_nos, self._limits)
                )

    async def rework(
        self,
        room_id: str,
        name: str,
        streams: Sequence[Stream],
        work: Callable[[Transaction, Outbox], T],
    ) -> T:
        """Run other work on a room in a transaction, in one turn of the room.

        The work takes the room's lock, and raises the revision of what it changes.

        :param name: what it does, for logs and errors
        :param streams: the streams that it may append to
        :raises RoomQueueFull: too much waits to be persisted in the room
        :raises SynreplError: the errors of the work, and of :meth:`.StreamWriter.transact`
        """
        with self.queues.entered({room_id: 0}) as (turn,):
            async with turn:
                done = await self._writer.transact(name, streams, work)
                return done.result

    async def _persist_parts(self, turn: Semaphore, batch: IncomingBatch) -> _Persisted:
        room_id, version, events, also = batch
        given: list[PersistedEvent] = []
        judged: list[PersistedEvent] = []
        parts = [events[at : at + MAX_BATCH] for at in range(0, len(events), MAX_BATCH)]
        last: PersistedBatch | None = None
        todo = deque(parts or [events])
        async with turn:
            try:
                while todo:
                    part = todo.popleft()
                    try:
                        last = await self._persist(room_id, version, part, also=also)
                    except ResolutionTooLarge as error:
                        if len(part) > 1:
                            todo.extendleft([part[len(part) // 2 :], part[: len(part) // 2]])
                            continue
                        last = await self._refuse(room_id, version, part, error)
                    given += last.events
                    judged += last.judged
                    last = await self._release(room_id, version, last, judged)
            except _ROOM_ERRORS as error:
                return _Persisted(last, given, judged, error)
        return _Persisted(last, given, judged, None)

    async def _refuse(
        self, room_id: str, version: str, part: Sequence[IncomingEvent], error: ResolutionTooLarge
    ) -> PersistedBatch:
        """The outcome of a batch of at most one event, of which nothing was stored."""
        self._count(error)
        events = [
            PersistedEvent(each.event.event_id, EventOutcome.REFUSED, error=error) for each in part
        ]
        return (await self._persist(room_id, version, ()))._replace(events=events)

    async def _release(
        self, room_id: str, version: str, last: PersistedBatch, judged: list[PersistedEvent]
    ) -> PersistedBatch:
        """Judge the events that waited for a batch and were too many for its transaction.

        :param judged: these are added to it
        """
        while last.has_ready and last.judged:
            released_by = [each.event_id for each in last.judged]
            try:
                last = await self._persist(room_id, version, (), released_by)
            except ResolutionTooLarge as error:  # they go on waiting
                self._count(error)
                break
            judged += last.judged
        return last

    async def _persist(
        self,
        room_id: str,
        version: str,
        events: Sequence[IncomingEvent],
        released_by: Sequence[str] = (),
        also: AlsoWrite | None = None,
    ) -> PersistedBatch:
        def make(reserves_early: bool) -> PersistRun:
            return PersistRun(
                room_id,
                version,
                events,
                self.memories,
                self._room_nos,
                self._limits,
                released_by,
                reserves_early,
                also,
            )

        return (await self._commit(room_id, _streams_of(events), make))[0]

    async def _commit(
        self, room_id: str, streams: Sequence[Stream], make: Callable[[bool], _Run]
    ) -> tuple[PersistedBatch, _Run]:
        """Run transactions until one is committed.

        :param make: makes the run of one, which may reserve tokens early or may not
        """
        reserves_early = True
        collisions = 0
        while True:
            run = make(reserves_early)
            try:
                await self._writer.transact(f"persist events of {room_id}", streams, run)
                return self._committed(room_id, run), run
            except (RoomNotAsRemembered, NotShort):
                reserves_early = False
            except NotNamed:
                reserves_early, streams = False, ROOM_STREAMS
            except ConstraintViolation as error:
                collisions += 1
                if collisions == _ATTEMPTS or not _may_succeed_again(error):
                    raise

    def _committed(self, room_id: str, run: PersistRun) -> PersistedBatch:
        """Remember what the transaction found out; nothing is remembered of one that failed."""
        result = run.result
        memory = run.memory
        assert memory is not None
        if memory.extremities is not None:
            memory.trim(memory.extremities.event_ids)
        self.memories.put_back(room_id, memory)
        self._room_nos[room_id] = result.room_no
        self._room_nos.move_to_end(room_id)
        if len(self._room_nos) > MAX_ROOM_NUMBERS:
            self._room_nos.popitem(last=False)
        for each in result.events:
            self._count(each.error)
        return result

    def _count(self, error: Exception | None) -> None:
        limit = _LIMITS.get(type(error))
        if limit is not None:
            self._refused[limit] += 1


def _may_succeed_again(error: ConstraintViolation) -> bool:
    """Whether a batch may be persisted all the same, as the room is now."""
    if isinstance(
        error, UniqueViolation
    ):  # somebody else made the room, or an event with the same ID
        return error.constraint != SENT_CONSTRAINT
    return error.constraint == PARTIAL_ROOM_CONSTRAINT  # the room has become complete


def _streams_of(events: Sequence[IncomingEvent]) -> Sequence[Stream]:
    """The streams that a batch is likely to need. Each that it does not need is a round trip more."""
    changes_state = any(
        each.event.state_key is not None or each.state_before is not None for each in events
    )
    backfills = any(each.backfilled for each in events)
    is_live = changes_state or not all(each.backfilled for each in events)
    wanted = ((EVENTS, is_live), (BACKFILL, backfills), (CACHES, changes_state))
    return [stream for stream, is_wanted in wanted if is_wanted] or ROOM_STREAMS


def _size(batch: IncomingBatch) -> int:
    """Bytes of the events of a batch."""
    return sum(len(each.event.raw) for each in batch.events)
