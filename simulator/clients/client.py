"""A Matrix client that goes from process to process, comes back with old tokens, and checks what it is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any, TypeVar

import orjson

from simulator.clients.client_room import ClientRoom, ToldPart, wrong_order, wrong_part
from simulator.clients.processes import SERVER_NAME, ClientApiProcess, ClientDeployment
from simulator.clients.stored_rooms import StoredRooms
from simulator.clock import Process
from simulator.transcript import Transcript
from simulator.truth import Violations
from synrepl.core.errors import SynreplError, Unavailable
from synrepl.daemon.client_api.position_wait import PositionWait
from synrepl.positions.vector import PositionVector
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.rooms.news.gap_wait import GAP_WAIT_S
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.sync.sync import SyncRequest
from synrepl.services.rooms.timelines.client_filter import (
    ClientFilter,
    RoomEventFilter,
    RoomFilter,
)
from synrepl.services.rooms.timelines.room_token import RoomToken
from synrepl.services.rooms.timelines.updates import MessagesPage, TimelineReader
from synrepl.storage.database import CommitUnknown
from synrepl.storage.rooms.tables.sent_events import SentEvent

T = TypeVar("T")

#: Seconds between attempts, and between syncs, at most.
AGAIN_S, PAUSE_S = 0.3, 2.0

#: The timeout of a sync that is to end by news, in seconds.
LONG_S = 60.0

#: Tokens that a client keeps to come back with.
KEPT = 4

#: Errors after which a client asks again; any other one is a defect.
AWAY = (Unavailable, CommitUnknown)


class Written:
    """What a client has written, and has to see in its next sync.

    :ivar position: that of its writes
    :ivar events: IDs of the rooms by those of the events
    """

    def __init__(self) -> None:
        self.position = PositionVector()
        self.events: dict[str, str] = {}

    def wrote(self, room_id: str, sent: SentEvent) -> None:
        """An event was sent."""
        if sent.writer is not None and sent.stream_id is not None:
            position = PositionVector({sent.writer: sent.stream_id}, sent.after)
            self.position = self.position.merge(position)
            self.events[sent.event_id] = room_id


class KeptState:
    """What a client knew at a token."""

    def __init__(self, since: SyncToken | None, rooms: Mapping[str, ClientRoom]) -> None:
        self.since = since
        self.rooms = {room_id: room.copy() for room_id, room in rooms.items()}


class SimulatedClient:
    """One device of a user.

    :param process: on which clients run; it is never killed
    :ivar rooms: those that it knows of
    :ivar is_calm: whether it does nothing odd any more
    :ivar only_waits: whether each of its syncs waits for long
    """

    def __init__(
        self,
        random: Random,
        process: Process,
        deployment: ClientDeployment,
        stored: StoredRooms,
        transcript: Transcript,
        violations: Violations,
        identity: ClientIdentity,
        counts: Counter[str],
    ) -> None:
        self._random = random
        self._process = process
        self._deployment = deployment
        self._stored = stored
        self._transcript = transcript
        self._violations = violations
        self.identity = identity
        self.name = f"{identity.user_id}/{identity.device_id}"
        self._counts = counts
        self._limit = random.choice([1, 2, 5, 50])
        self._state_after = random.random() < 0.5
        self._at: str | None = None
        self.since: SyncToken | None = None
        self.rooms: dict[str, ClientRoom] = {}
        self._kept: list[KeptState] = []
        self.written = Written()
        self.is_calm = self.only_waits = False

    async def run(self) -> None:
        """Sync for ever."""
        random = self._random
        while not self._violations.found:
            await self._process.sleep(random.random() ** 2 * PAUSE_S)
            if not self.is_calm:
                self._do_something_odd()
            timeout_s = random.choice([0.0, 1.0, 20.0])
            await self.sync(LONG_S if self.only_waits else timeout_s)

    def _do_something_odd(self) -> None:
        """Come back with an old token, forget everything, or remember all of this."""
        random = self._random
        dice = random.random()
        if dice < 0.1 and self._kept:
            kept = random.choice(self._kept)
            again = KeptState(kept.since, kept.rooms)
            self.since, self.rooms = again.since, again.rooms
            self._counts["old tokens"] += 1
        elif dice < 0.13:
            self.since, self.rooms = None, {}
            self._counts["new devices"] += 1
        elif dice < 0.4:
            self._kept = [*self._kept[-KEPT + 1 :], KeptState(self.since, self.rooms)]

    # -- requests ---------------------------------------------------------------------

    async def ask(self, what: str, work: Any) -> Any:
        """Ask a process, another one each time, until one answers.

        :param work: makes the coroutine, given the process
        """
        while True:
            name = self._choose()
            process = self._deployment.processes[name]
            try:
                if not process.is_ready:
                    raise _Down()
                return await process.ask(work(process))
            except AWAY as error:
                self._counts[f"{what} again"] += 1
                self._transcript.add(
                    self.name,
                    "{what} at {at}: {kind}",
                    what=what,
                    at=name,
                    kind=type(error).__name__,
                )
                await self._process.sleep(self._random.random() * AGAIN_S)

    def _choose(self) -> str:
        """Mostly the same process as before."""
        names = list(self._deployment.processes)
        if self._at is None or self._random.random() < 0.4:
            self._at = self._random.choice(names)
        return self._at

    # -- syncs ------------------------------------------------------------------------

    async def sync(self, timeout_s: float) -> None:
        """Sync once, fill the gaps, and check what was told."""
        since, written, began = self.since, self.written, self._process.seconds()
        self.written = Written()
        request = SyncRequest(
            since,
            timeout_s,
            ClientFilter(
                room=RoomFilter(include_leave=False, timeline=RoomEventFilter(limit=self._limit))
            ),
            state_after="state_after" if self._state_after else None,
        )

        async def work(process: ClientApiProcess) -> bytes:
            wait = PositionWait(process.reading.applied, process.reading.covered)
            await wait.wait_until_covered({"events": written.position})
            return orjson.dumps(await process.reading.sync.sync(self.identity, request))

        try:
            answer = orjson.loads(await self.ask("sync", work))
        except SynreplError as error:
            self._wrong(f"sync from {since}: {type(error).__name__}: {error}")
            return
        upto = SyncToken.parse(answer["next_batch"], SERVER_NAME)
        self._counts["syncs"] += 1
        self._transcript.add(
            self.name,
            "{since} -> {upto} at {at}: {rooms}",
            since=None if since is None else since.events,
            upto=upto.events,
            at=self._at,
            rooms=_shown(answer),
        )
        if since is not None and not upto.events.covers(since.events):
            self._wrong(f"{upto} does not cover {since}")
        await self._take(since, upto, answer.get("rooms", {}))
        self.since = upto
        if not self._violations.found:
            self._check_rooms(upto.events)
            self._check_written(written, upto, self._process.seconds() - began)

    async def _take(
        self, since: SyncToken | None, upto: SyncToken, told: Mapping[str, Any]
    ) -> None:
        before = None if since is None else since.events
        silent = {room_id for room_id, room in self.rooms.items() if room.is_joined}
        for room_id, entry in told.get("join", {}).items():
            room = self.rooms.get(room_id)
            is_new = room is None or not room.is_joined or before is None
            if room is None or is_new:
                room = self.rooms[room_id] = ClientRoom()
            await self._take_room(room_id, room, entry, None if is_new else before, upto)
            silent.discard(room_id)
        for room_id, entry in told.get("leave", {}).items():
            room = self.rooms.get(room_id)
            if room is not None and room.is_joined:
                await self._take_left(room_id, room, entry, before, upto)
                room.is_joined = False
            silent.discard(room_id)
        for room_id in (*told.get("invite", ()), *told.get("knock", ())):
            if room_id in self.rooms:  # it was left before
                self.rooms[room_id].is_joined = False
            silent.discard(room_id)
        for room_id in silent:
            self._check_part(room_id, self.rooms[room_id], before, upto.events, (), False)

    async def _take_room(
        self,
        room_id: str,
        room: ClientRoom,
        entry: Mapping[str, Any],
        since: PositionVector | None,
        upto: SyncToken,
    ) -> None:
        timeline = entry["timeline"]
        events = await self._without_gap(room_id, timeline, self.since if since else None)
        self._check_part(room_id, room, since, upto.events, events, timeline["limited"])
        room.timeline += events
        self._counts["events"] += len(events)
        if self._state_after:
            room.apply_state(entry["state_after"]["events"])
        else:
            room.apply_state(entry["state"]["events"])
            room.apply_state(timeline["events"])
        for wrong in wrong_order(self._stored, room.timeline):
            self._wrong(f"{room_id}: {wrong}")

    async def _take_left(
        self,
        room_id: str,
        room: ClientRoom,
        entry: Mapping[str, Any],
        since: PositionVector | None,
        upto: SyncToken,
    ) -> None:
        """Take over what was told of a room that the user left: it is up to the leave."""
        events = await self._without_gap(room_id, entry["timeline"], self.since)
        user = self.identity.user_id
        told = set(events)
        visible = {each.event_id for each in self._stored.visible(room_id, user)}
        if not told <= visible:
            self._wrong(f"{room_id}, left: not to be seen: {sorted(told - visible)}")
        if len(told) < len(events) or not told.isdisjoint(room.timeline):
            self._wrong(f"{room_id}, left: repeated: {events}")
        room.timeline += events

    def _check_part(
        self,
        room_id: str,
        room: ClientRoom,
        since: PositionVector | None,
        upto: PositionVector,
        events: Any,
        is_limited: bool,
    ) -> None:
        user = self.identity.user_id
        membership = self._stored.membership(room_id, user, upto)
        before = "join" if since is None else self._stored.membership(room_id, user, since)
        if membership != "join" or before != "join":
            return  # amid a batch, or told by _check_rooms
        part = ToldPart(user, room_id, since, upto, events, is_limited)
        for wrong in wrong_part(self._stored, part, room.timeline):
            self._wrong(f"{room_id}, {since} -> {upto}: {wrong}")

    async def _without_gap(
        self, room_id: str, timeline: Mapping[str, Any], to: SyncToken | None
    ) -> list[str]:
        """The IDs of the events of a timeline, and before them of those on the pages that fill its gap.

        :param to: up to where the client knows the room; None: it does not know it
        """
        events = [each["event_id"] for each in timeline["events"]]
        if to is None or timeline["limited"]:
            self._counts["gaps"] += 1
            older = await self._history(room_id, timeline["prev_batch"], to)
            events = [*reversed(older), *events]
        return events

    async def _history(self, room_id: str, token: str, to: SyncToken | None) -> list[str]:
        """The IDs of all events on the pages from a token back, the newest first."""
        found: list[str] = []
        at: str | None = token
        while at is not None:
            start, limit = RoomToken.parse(at), self._random.choice([1, 3, 10])

            async def work(
                process: ClientApiProcess, start: RoomToken = start, limit: int = limit
            ) -> MessagesPage:
                reading = process.reading
                if to is not None:
                    await reading.covered.until_covered(to)
                return await reading.timelines.messages(
                    TimelineReader(*self.identity),
                    room_id,
                    reading.applied.current().events,
                    start,
                    None if to is None else to.events,
                    limit=limit,
                )

            try:
                page = await self.ask("page", work)
            except SynreplError as error:
                self._wrong(f"page of {room_id} from {at}: {type(error).__name__}: {error}")
                return found
            found += [each.event_id for each in page.events]
            self._counts["pages"] += 1
            if page.end is not None and str(page.end) == at:
                self._wrong(f"the page of {room_id} after {at} is the same")
                return found
            at = None if page.end is None else str(page.end)
        return found

    # -- checks -----------------------------------------------------------------------

    def _check_rooms(self, upto: PositionVector) -> None:
        """The client knows in which rooms the user is."""
        for room_id, membership in self._stored.joined_rooms(self.identity.user_id, upto).items():
            room = self.rooms.get(room_id)
            is_joined = room is not None and room.is_joined
            if membership is not None and (membership == "join") is not is_joined:
                told = "told of it" if is_joined else "not told of it"
                self._wrong(f"{room_id} at {upto}: membership {membership}, and {told}")

    def has_seen(self, event_id: str) -> bool:
        """Whether it knows of an event, or need not."""
        event = self._stored.events[event_id]
        room = self.rooms.get(event.room_id)
        if room is None or not room.is_joined or not event.is_visible(self.identity.user_id):
            return True
        return event_id in room.timeline

    async def check_end(self) -> None:
        """Compare what it knows with what is stored, and with what a new device of the user is told."""
        new = SimulatedClient(
            self._random,
            self._process,
            self._deployment,
            self._stored,
            self._transcript,
            self._violations,
            ClientIdentity(self.identity.user_id, f"{self.identity.device_id} again"),
            self._counts,
        )
        new._state_after = True
        await new.sync(0.0)
        for room_id, room in new.rooms.items():
            visible = {e.event_id for e in self._stored.visible(room_id, self.identity.user_id)}
            differing = set(room.timeline) ^ (visible - self._stored.purged)
            if differing:
                self._wrong(f"{room_id}: a new device is told otherwise: {sorted(differing)}")
            current = self._stored.current_state(room_id)
            if room.state != current:
                self._wrong(f"{room_id}: the state is {room.state}, not {current}")
            known = self.rooms[room_id].state if room_id in self.rooms else {}
            if self._state_after and {k: known.get(k) for k in current} != current:
                self._wrong(f"{room_id}: the client has the state {known}, not {current}")

    def _check_written(self, written: Written, upto: SyncToken, took_s: float) -> None:
        """The client sees what it wrote before it asked, unless the process was behind for long."""
        for event_id, room_id in written.events.items():
            room, event = self.rooms.get(room_id), self._stored.events[event_id]
            if not event.is_covered(upto.events):
                if took_s < GAP_WAIT_S:
                    self._wrong(f"{event_id} was written, and {upto} does not cover it")
            elif (
                room is not None
                and room.is_joined
                and event.is_visible(self.identity.user_id)
                and event_id not in room.timeline
                and event_id not in self._stored.purged
            ):
                self._wrong(f"{event_id} was written, and is not shown")

    def _wrong(self, what: str) -> None:
        self._violations.add("CLIENT", "{name}: {what}", name=self.name, what=what)


class _Down(Unavailable):
    """the process does not run"""


def _shown(answer: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    """An answer in short, for the transcript."""
    return {
        kind: {
            room_id: [each["event_id"] for each in entry["timeline"]["events"]]
            if "timeline" in entry
            else "stripped"
            for room_id, entry in rooms.items()
        }
        for kind, rooms in answer.get("rooms", {}).items()
    }
