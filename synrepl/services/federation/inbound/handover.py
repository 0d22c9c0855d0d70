"""Hands verified events over to the process that judges their room: at once if it is this one, else by a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from synrepl.core.clock import Promise
from synrepl.core.errors import SynreplError, Unavailable
from synrepl.rooms import Event
from synrepl.services.federation.inbound.admission import AdmittedRoom
from synrepl.services.federation.inbound.room_inboxes import (
    JudgedEvents,
    ReceivedEvents,
    RoomInboxes,
)
from synrepl.services.rooms.room_queues import RoomQueueFull
from synrepl.storage.database import Database
from synrepl.storage.federation.staged_events import StagedEvent, stage_events
from synrepl.storage.rooms.tables.incoming import EventOutcome

#: Seconds for which verdicts are waited for; events that have none by then are staged.
WAIT_FOR_VERDICTS_S = 2.0

#: What became of events: an error by event ID; None: it was taken.
Outcomes = dict[str, str | None]


class TooMuchStaged(Unavailable):
    """too many events wait to be judged in room {room_id}; send this one again later"""


class WakesRooms(Protocol):
    """Has the processes that judge rooms look at their staged events."""

    def wake(self, rooms: Mapping[str, str]) -> None:
        """Wake rooms that are assigned to other processes.

        :param rooms: the process of each, by ID
        """


class EventHandover:
    """Has events judged, or stages them. Whatever has no error when it returns is in the database.

    :param inboxes: of the rooms of this process; None in a process that persists no room
    :param instance: this process
    :param wait_s: seconds for which verdicts are waited for
    """

    def __init__(
        self,
        database: Database,
        inboxes: RoomInboxes | None,
        waker: WakesRooms,
        instance: str,
        wait_s: float = WAIT_FOR_VERDICTS_S,
    ) -> None:
        self._database = database
        self._inboxes = inboxes
        self._waker = waker
        self._instance = instance
        self._wait_s = wait_s

    async def give(
        self,
        origin: str,
        by_room: Mapping[str, Sequence[Event]],
        rooms: Mapping[str, AdmittedRoom],
    ) -> Outcomes:
        """Hand events over.

        :param origin: the server that sent them
        :param by_room: events that passed checks 1 to 3
        :param rooms: with the process that judges each
        :raises Unavailable: something failed that may succeed when the events come again
        """
        outcomes: Outcomes = {}
        offered: dict[str, Promise[JudgedEvents | None]] = {}
        staged: dict[str, Sequence[Event]] = {}
        for room_id, events in by_room.items():
            room = rooms[room_id]
            if self._inboxes is None or room.writer != self._instance:
                staged[room_id] = events
                continue
            received = ReceivedEvents(room_id, room.room.version, origin, events)
            offered[room_id] = self._inboxes.offer(received, self._wait_s)
        failure: SynreplError | None = None
        for room_id, promise in offered.items():
            done = await promise
            if done is None or isinstance(done.error, RoomQueueFull):
                staged[room_id] = by_room[room_id]
            elif isinstance(done.error, Unavailable):
                failure = done.error
            else:
                outcomes |= _verdicts(by_room[room_id], done)
        if staged:
            outcomes |= await self._stage(origin, staged, rooms)
        if failure is not None:
            raise failure
        return outcomes

    async def _stage(
        self,
        origin: str,
        by_room: Mapping[str, Sequence[Event]],
        rooms: Mapping[str, AdmittedRoom],
    ) -> Outcomes:
        outcomes: Outcomes = {}
        rows = [
            StagedEvent(rooms[room_id].room.room_no, origin, event.event_id, event.raw)
            for room_id, events in by_room.items()
            for event in events
        ]
        refused = await self._database.run("stage events", lambda txn: stage_events(txn, rows))
        elsewhere: dict[str, str] = {}
        for room_id, events in by_room.items():
            for event in events:
                is_refused = event.event_id in refused
                error = str(TooMuchStaged(room_id=room_id)) if is_refused else None
                outcomes[event.event_id] = error
            writer = rooms[room_id].writer
            if self._inboxes is not None and writer == self._instance:
                self._inboxes.wake(room_id)
            else:
                elsewhere[room_id] = writer
        if elsewhere:
            self._waker.wake(elsewhere)
        return outcomes


def _verdicts(events: Sequence[Event], done: JudgedEvents) -> Outcomes:
    if done.error is not None:
        return {event.event_id: str(done.error) for event in events}
    outcomes: Outcomes = {}
    for each in done.events:
        error = None
        if each.outcome is EventOutcome.REJECTED and each.refusal is not None:
            error = f"it is rejected: {each.refusal.sentence}"
        elif each.error is not None:
            error = str(each.error)
        outcomes[each.event_id] = error
    return outcomes
