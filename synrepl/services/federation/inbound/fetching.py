"""Fetches events from other servers: auth chains, and the state before an event.

What another server answers is a claim. Every event passes checks 1 to 3 first, is of the room that was asked about, and
is stored as an outlier before anything rests on it. A state has an ``m.room.create``, one event for each key, and only
events that are here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.concurrent import map_concurrently
from synrepl.core.errors import ProtocolError, SynreplError
from synrepl.core.keyed_semaphores import KeyedSemaphores
from synrepl.rooms import (
    Event,
    RoomVersion,
    StateKey,
    StateMap,
    auth_dependencies,
    topological_sort,
)
from synrepl.services.federation.client import FederationClient
from synrepl.services.federation.verifying import EventVerifier
from synrepl.services.rooms.persister import RoomPersister
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.gaps import StateEventKey, state_event_keys, unknown_events
from synrepl.storage.rooms.tables.incoming import IncomingEvent

T = TypeVar("T")

#: Requests to one server at a time that this process makes for gaps; others wait, so that no server is overrun and
#: a slow one does not hold more.
REQUESTS_OF_DESTINATION = 4

#: Missing events of a state that are fetched one by one, at most, and how many at a time.
MAX_SINGLE, SINGLE_AT_ONCE = 200, 4

#: From one missing event in so many on, the whole state is fetched.
WHOLE_STATE_SHARE = 10

#: Bytes of fetched events that are in memory at once, and events that are stored in one transaction.
MAX_FETCHED_BYTES, STORED_AT_ONCE = 128 * 2**20, 200

#: IDs that are looked up in one statement.
IDS_AT_ONCE = 5_000


class UnusableState(ProtocolError):
    """the state before event {event_id} that {destination} reports is not acceptable: {reason}"""


class RoomRef(NamedTuple):
    """A stored room."""

    room_no: int
    room_id: str
    version: RoomVersion


class EventFetcher:
    """Fetches and stores events of rooms that this process persists."""

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        client: FederationClient,
        verifier: EventVerifier,
        persister: RoomPersister,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._client = client
        self._verifier = verifier
        self._persister = persister
        self._slots: KeyedSemaphores[str] = KeyedSemaphores(scheduler, REQUESTS_OF_DESTINATION)

    async def missing_events(
        self,
        room: RoomRef,
        server: str,
        earliest: Sequence[str],
        latest: Sequence[str],
        limit: int,
        min_depth: int,
    ) -> list[Event]:
        """Events of a room between some, which were verified, causes first.

        :raises SynreplError: the errors of :class:`.FederationClient`
        """
        raws = await self._asking(
            server,
            lambda: self._client.missing_events(
                server, room.room_id, earliest, latest, limit, min_depth
            ),
        )
        events = await self.verified(room, server, raws)
        return _sorted(events, lambda event: event.prev_event_ids)

    async def backfill(
        self, room: RoomRef, server: str, event_ids: Sequence[str], limit: int
    ) -> list[Event]:
        """Events at and before some, which were verified, causes first.

        :raises SynreplError: the errors of :class:`.FederationClient`
        """
        raws = await self._asking(
            server, lambda: self._client.backfill(server, room.room_id, event_ids, limit)
        )
        events = await self.verified(room, server, raws)
        return _sorted(events, lambda event: event.prev_event_ids)

    async def store_auth_chain(self, room: RoomRef, server: str, event: Event) -> None:
        """Store the auth chain of an event as outliers, as far as a server has it.

        :raises SynreplError: the errors of :class:`.FederationClient` and :meth:`.RoomPersister.persist`
        """
        raws = await self._asking(
            server, lambda: self._client.event_auth(server, room.room_id, event.event_id)
        )
        await self._store_outliers(room, await self.verified(room, server, raws))

    async def state_before(self, room: RoomRef, server: str, event: Event) -> StateMap:
        """The state before an event as a server reports it. Its events are stored.

        :raises UnusableState:
        :raises SynreplError: the errors of :class:`.FederationClient` and :meth:`.RoomPersister.persist`
        """
        return await self._asking(server, lambda: self._state_before(room, server, event.event_id))

    async def _state_before(self, room: RoomRef, server: str, event_id: str) -> StateMap:
        ids = await self._client.state_ids(server, room.room_id, event_id)
        if event_id in ids.state or event_id in ids.auth_chain:
            raise _unusable(server, event_id, "the event is part of it")
        named = list(dict.fromkeys([*ids.auth_chain, *ids.state]))
        missing = await self.unknown(named)
        if missing:
            await self._fetch(room, server, event_id, named, missing)
        return _as_state(server, event_id, ids.state, await self.keys(room, ids.state))

    async def _asking(self, server: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask a server, when not too many others do."""
        with self._slots.entered(server) as slot:
            async with slot:
                return await ask()

    async def verified(self, room: RoomRef, server: str, raws: Sequence[bytes]) -> list[Event]:
        """Those of some events that pass checks 1 to 3 and are of a room."""
        results = await self._verifier.verify(raws, room.version, origin=server)
        found = [each.event for each in results if each.event is not None]
        return [each for each in found if each.room_id == room.room_id]

    # -- states ---------------------------------------------------------------------------

    async def _fetch(
        self,
        room: RoomRef,
        server: str,
        event_id: str,
        named: Collection[str],
        missing: Sequence[str],
    ) -> None:
        """Fetch and store the missing events of a state and its auth chain."""
        if len(missing) <= MAX_SINGLE and len(missing) * WHOLE_STATE_SHARE <= len(named):
            raws = await map_concurrently(
                self._scheduler,
                lambda each: self._client.event(server, each),
                missing,
                SINGLE_AT_ONCE,
            )
            await self._store_outliers(room, await self.verified(room, server, raws))
            return
        wanted = set(missing)
        events: list[Event] = []
        with await self._client.state(server, room.room_id, event_id) as answer:
            for part in (answer.auth_chain(), answer.state()):
                batch: list[bytes] = []
                for raw in part:
                    batch.append(raw)
                    if len(batch) == STORED_AT_ONCE:
                        events += await self._wanted(room, server, batch, wanted)
                        batch = []
                events += await self._wanted(room, server, batch, wanted)
                if sum(len(each.raw) for each in events) > MAX_FETCHED_BYTES:
                    reason = f"more than {MAX_FETCHED_BYTES} bytes of it are missing here"
                    raise _unusable(server, event_id, reason)
        await self._store_outliers(room, events)

    async def _wanted(
        self, room: RoomRef, server: str, raws: Sequence[bytes], wanted: set[str]
    ) -> list[Event]:
        """Those of some events that are wanted; they are not wanted any more then."""
        found: list[Event] = []
        for each in await self.verified(room, server, raws) if raws else ():
            if each.event_id in wanted:
                wanted.discard(each.event_id)
                found.append(each)
        return found

    async def _store_outliers(self, room: RoomRef, events: Sequence[Event]) -> None:
        """Store events as outliers, those first that others cite."""
        ordered = _sorted(events, auth_dependencies)
        for at in range(0, len(ordered), STORED_AT_ONCE):
            part = [IncomingEvent(e, outlier=True) for e in ordered[at : at + STORED_AT_ONCE]]
            await self._persister.persist(room.room_id, room.version.name, part)

    async def unknown(self, event_ids: Sequence[str]) -> list[str]:
        """Those of some events that are not here."""
        found: list[str] = []
        for at in range(0, len(event_ids), IDS_AT_ONCE):
            part = event_ids[at : at + IDS_AT_ONCE]

            def work(txn: Transaction, part: Sequence[str] = part) -> list[str]:
                return unknown_events(txn, part)

            found += await self._database.run("unknown events", work, read_only=True)
        return found

    async def keys(self, room: RoomRef, event_ids: Sequence[str]) -> list[StateEventKey]:
        """The keys of those of some events that are here, and set state."""
        found: list[StateEventKey] = []
        for at in range(0, len(event_ids), IDS_AT_ONCE):
            part = event_ids[at : at + IDS_AT_ONCE]

            def work(txn: Transaction, part: Sequence[str] = part) -> list[StateEventKey]:
                return state_event_keys(txn, room.room_no, part)

            found += await self._database.run("keys of a state", work, read_only=True)
        return found


def _as_state(
    server: str, event_id: str, named: Collection[str], found: Sequence[StateEventKey]
) -> StateMap:
    """A state that was reported, if it can be one.

    :raises UnusableState:
    """
    state: dict[StateKey, str] = {}
    for each in found:
        key = each.type, each.state_key
        if state.setdefault(key, each.event_id) != each.event_id:
            raise _unusable(server, event_id, f"it has two events for {key!r:.200}")
    lacking = set(named) - {each.event_id for each in found}
    if lacking:
        reason = f"{len(lacking)} of its events are not to be had, such as {min(lacking)!r:.200}"
        raise _unusable(server, event_id, reason)
    if ("m.room.create", "") not in state:
        raise _unusable(server, event_id, "it has no m.room.create")
    return state


def _sorted(events: Sequence[Event], cites: Callable[[Event], Collection[str]]) -> list[Event]:
    """Events, each once, those first that others cite."""
    unique = {each.event_id: each for each in events}
    return list(topological_sort(list(unique.values()), dependencies=cites).events)


def _unusable(server: str, event_id: str, reason: str) -> SynreplError:
    return UnusableState(destination=server, event_id=event_id[:255], reason=reason)
