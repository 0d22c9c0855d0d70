"""Backfill: fetches the history of a room when a client pages back beyond what is here.

The events go into the stream ``backfill``, in the process that the room is assigned to. Those whose parents are missing are
judged by the state before them that another server reports; the rest follows from these. A room is backfilled once at a
time, whoever asks. Source: https://spec.matrix.org/v1.16/server-server-api/#backfilling-and-retrieving-missing-events
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import ProtocolError, Refused, SynreplError, Unavailable
from synrepl.core.log import Logger
from synrepl.rooms import Event, StateMap, room_version
from synrepl.services.federation.inbound.fetching import EventFetcher, RoomRef
from synrepl.services.forwarding import ForwardsToWriter, WriterActions
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.failed_fetches import not_due, note_failures
from synrepl.storage.federation.gaps import events_with_state
from synrepl.storage.federation.inbound_rooms import some_servers
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent
from synrepl.storage.rooms.tables.numbers import find_room

#: Seconds for which a client waits.
WAIT_S = 10.0

#: Events that are asked for, and events that are named as where to begin.
EVENTS_AT_ONCE, MAX_NAMED = 100, 20

#: Servers that are asked for the same, and servers from which these are chosen.
MAX_ASKED, MAX_SERVERS = 4, 100

#: Events of one answer whose state is fetched; what rests on others is left out.
MAX_STATES = 5

#: The action by which one process has another one backfill a room.
BACKFILL_ACTION = "backfill room"

#: Errors of a server, after which the next one is asked.
_SERVER_ERRORS = (Unavailable, ProtocolError, Refused)


class _RoomHistory(NamedTuple):
    """What is to be fetched of a room.

    :ivar missing: events to begin with, without those that nobody gave lately
    """

    room: RoomRef
    missing: Sequence[str]
    servers: Sequence[str]


class RoomBackfill:
    """Backfills rooms of this process.

    :param server_name: of this server
    :ivar outcomes: number of events by outcome, and of failures by the name of the error
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        fetcher: EventFetcher,
        persister: RoomPersister,
        server_name: str,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._fetcher = fetcher
        self._persister = persister
        self._server_name = server_name
        self._active: dict[str, list[Promise[bool]]] = {}
        self.outcomes: Counter[str] = Counter()

    @property
    def active(self) -> int:
        """Number of rooms that are being backfilled."""
        return len(self._active)

    async def run(self, room_id: str, missing: Sequence[str]) -> bool:
        """Fetch events of a room; returns whether any has come. Who asks while it runs gets the same answer.

        :param missing: events where it begins
        :raises SynreplError: the errors of :meth:`.RoomPersister.persist`
        """
        waiting = self._active.get(room_id)
        if waiting is not None:
            promise: Promise[bool] = self._scheduler.promise()
            waiting.append(promise)
            return await promise
        self._active[room_id] = []
        has_come = False
        try:
            has_come = await self._run(room_id, missing)
        finally:
            for each in self._active.pop(room_id):
                each.callback(has_come)
        return has_come

    async def _run(self, room_id: str, missing: Sequence[str]) -> bool:
        def look(txn: Transaction) -> _RoomHistory | None:
            room = find_room(txn, room_id)
            if room is None:
                return None
            waits = not_due(txn, room.room_no, missing)
            due = [each for each in missing if each not in waits and "\0" not in each]
            servers = some_servers(txn, room.room_no, MAX_SERVERS)
            ref = RoomRef(room.room_no, room_id, room_version(room.version))
            return _RoomHistory(ref, due[:MAX_NAMED], servers)

        history = await self._database.run("look at a room's history", look, read_only=True)
        if history is None or not history.missing:
            return False
        reason = "the room has no other server"
        for server in self._chosen(history.servers):
            try:
                if await self._fetch(history, server):
                    return True
                reason = f"{server} has no event"
            except _SERVER_ERRORS as error:
                self.outcomes[type(error).__name__] += 1
                reason = str(error)
        room_no, lacking = history.room.room_no, history.missing
        await self._database.run(
            "events failed to fetch", lambda txn: note_failures(txn, room_no, lacking, reason)
        )
        return False

    def _chosen(self, servers: Sequence[str]) -> list[str]:
        """Some servers, in any order."""
        others = [each for each in servers if each != self._server_name]
        chosen: list[str] = []
        while others and len(chosen) < MAX_ASKED:
            chosen.append(others.pop(int(self._scheduler.random() * len(others))))
        return chosen

    async def _fetch(self, history: _RoomHistory, server: str) -> bool:
        """Fetch and store events from one server; returns whether any is new."""
        room = history.room
        events = await self._fetcher.backfill(room, server, history.missing, EVENTS_AT_ONCE)
        parents = {each for event in events for each in event.prev_event_ids}
        names = [*(each.event_id for each in events), *parents]
        here = await self._database.run(
            "known events", lambda txn: events_with_state(txn, names), read_only=True
        )
        new = [each for each in events[:EVENTS_AT_ONCE] if each.event_id not in here]
        states = await self._states(room, server, new, here)
        known = set(here)
        incoming: list[IncomingEvent] = []
        for event in new:
            state = states.get(event.event_id)
            if state is None and not known.issuperset(event.prev_event_ids):
                continue  # it rests on events whose state is not known
            known.add(event.event_id)
            incoming.append(IncomingEvent(event, live=False, backfilled=True, state_before=state))
        if not incoming:
            return False
        done = await self._persister.persist(room.room_id, room.version.name, incoming)
        self.outcomes.update(each.outcome.value for each in done.events)
        return any(
            each.outcome not in (EventOutcome.REFUSED, EventOutcome.WAITING, EventOutcome.KNOWN)
            for each in done.events
        )

    async def _states(
        self, room: RoomRef, server: str, events: Sequence[Event], here: Collection[str]
    ) -> Mapping[str, StateMap]:
        """The states before events whose parents are neither here nor among them, by event."""
        among = {each.event_id for each in events} | set(here)
        found: dict[str, StateMap] = {}
        for event in events:
            if among.issuperset(event.prev_event_ids) or len(found) >= MAX_STATES:
                continue
            try:
                found[event.event_id] = await self._fetcher.state_before(room, server, event)
            except _SERVER_ERRORS as error:
                self.outcomes[type(error).__name__] += 1
        return found


class Backfiller:
    """Has rooms backfilled, in the processes that they are assigned to.

    :param backfill: None in a process that persists no room
    :param instance: this process
    """

    def __init__(
        self,
        scheduler: Scheduler,
        writers: RoomWriters,
        backfill: RoomBackfill | None,
        forwarder: ForwardsToWriter,
        instance: str,
        log: Logger,
        wait_s: float = WAIT_S,
    ) -> None:
        self._scheduler = scheduler
        self._writers = writers
        self._backfill = backfill
        self._forwarder = forwarder
        self._instance = instance
        self._log = log
        self._wait_s = wait_s

    def add_actions(self, actions: WriterActions) -> None:
        """Let other processes have rooms of this one backfilled."""
        actions.add(BACKFILL_ACTION, self._perform)

    async def fetch(self, room_id: str, missing: Sequence[str]) -> bool:
        """Have events of a room fetched; returns whether any has come in time.

        What takes longer goes on; whoever asks again finds what has come.

        :param missing: events where it begins
        """
        promise: Promise[bool] = self._scheduler.promise()
        settled = False

        def settle(has_come: bool) -> None:
            nonlocal settled
            if not settled:
                settled = True
                promise.callback(has_come)

        async def run() -> None:
            has_come = False
            try:
                has_come = await self._fetch(room_id, missing)
            except SynreplError as error:
                self._log.warn(
                    "cannot backfill {room_id} now: {error}", room_id=room_id, error=error
                )
            finally:
                settle(has_come)

        timer = self._scheduler.callLater(self._wait_s, settle, False)
        self._scheduler.spawn(f"backfill {room_id}", run())
        has_come = await promise
        if timer.active():
            timer.cancel()
        return has_come

    async def _fetch(self, room_id: str, missing: Sequence[str]) -> bool:
        assignment = (await self._writers.place([room_id])).assignment
        writer = assignment.writer_of(room_id)
        if writer == self._instance and self._backfill is not None:
            return await self._backfill.run(room_id, missing)
        argument = {"room_id": room_id, "missing": list(missing)}
        return bool(await self._forwarder.forward(writer, BACKFILL_ACTION, argument))

    async def _perform(self, argument: dict[str, Any]) -> bool:
        if self._backfill is None:
            return False
        return await self._backfill.run(argument["room_id"], argument["missing"])
