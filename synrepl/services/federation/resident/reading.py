"""Events, states and auth chains for other servers that are in a room.

State and auth events are for every server in the room; of other events, servers get what its history visibility lets
them see, and the redacted form of the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from synrepl.rooms import server_of
from synrepl.services.federation.resident.room_access import RoomAccess
from synrepl.services.federation.resident.state_streams import StateStreams
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.served_events import (
    EventAtTime,
    auth_chain_of,
    event_at_time,
    event_for_server,
    place_of_event,
)


class ResidentReading:
    """Answers servers that are in a room.

    :param server_name: of this server
    """

    def __init__(
        self,
        database: Database,
        access: RoomAccess,
        store: RoomStore,
        streams: StateStreams,
        server_name: str,
    ) -> None:
        self._database = database
        self._access = access
        self._store = store
        self._streams = streams
        self._server_name = server_name

    async def event(self, origin: str, event_id: str) -> bytes:
        """An event.

        :raises EventNotStored: :raises SynreplError: the errors of :meth:`.RoomAccess.for_member`
        """
        await self._check(origin, event_id)

        def work(txn: Transaction) -> bytes:
            return event_for_server(txn, event_id, origin)

        return await self._database.run("event for a server", work, read_only=True)

    async def event_auth(self, origin: str, room_id: str, event_id: str) -> AsyncIterator[bytes]:
        """The answer with the auth chain of an event.

        :raises EventNotStored: :raises EventInOtherRoom:
        :raises SynreplError: the errors of :meth:`.RoomAccess.for_member`
        """
        await self._check(origin, event_id)
        room_no, numbers = await self._database.run(
            "auth chain of an event",
            lambda txn: auth_chain_of(txn, room_id, event_id),
            read_only=True,
        )
        return await self._streams.chain(room_no, numbers)

    async def _check(self, origin: str, event_id: str) -> None:
        """Check that a server may ask about an event. In a partial room, these are events of this server's users.

        :raises EventNotStored: :raises SynreplError: the errors of :meth:`.RoomAccess.for_member`
        """
        room_id, sender = await self._database.run(
            "place of an event", lambda txn: place_of_event(txn, event_id), read_only=True
        )
        is_own = server_of(sender) == self._server_name
        await self._access.for_member(origin, room_id, needs_state=not is_own)

    async def state(self, origin: str, room_id: str, event_id: str) -> AsyncIterator[bytes]:
        """The answer with the state before an event.

        :raises SynreplError: the errors of :meth:`.RoomAccess.for_member` and :meth:`.StateStreams.state`
        """
        await self._access.for_member(origin, room_id, needs_state=True)
        return await self._streams.state(room_id, event_id)

    async def state_ids(self, origin: str, room_id: str, event_id: str) -> AsyncIterator[bytes]:
        """The same with event IDs.

        :raises SynreplError: the errors of :meth:`.RoomAccess.for_member` and :meth:`.StateStreams.state`
        """
        await self._access.for_member(origin, room_id, needs_state=True)
        return await self._streams.state_ids(room_id, event_id)

    async def backfill(
        self, origin: str, room_id: str, event_ids: Sequence[str], limit: int
    ) -> Sequence[bytes]:
        """Events at and before some, the newest first.

        :raises SynreplError: the errors of :meth:`.RoomAccess.for_member` and :meth:`.RoomStore.backfill`
        """
        await self._access.for_member(origin, room_id)
        return (await self._store.backfill(room_id, origin, event_ids, limit)).json

    async def missing_events(
        self,
        origin: str,
        room_id: str,
        earliest: Sequence[str],
        latest: Sequence[str],
        limit: int,
        min_depth: int,
    ) -> Sequence[bytes]:
        """Events between some, the oldest first.

        :raises SynreplError: the errors of :meth:`.RoomAccess.for_member` and :meth:`.RoomStore.missing_events`
        """
        await self._access.for_member(origin, room_id)
        found = await self._store.missing_events(
            room_id, origin, earliest, latest, limit, min_depth
        )
        return found.json

    async def event_at(self, origin: str, room_id: str, ts: int, *, forwards: bool) -> EventAtTime:
        """The event closest to a time.

        :raises NoEventAtTime: :raises SynreplError: the errors of :meth:`.RoomAccess.for_member`
        """
        await self._access.for_member(origin, room_id)

        def work(txn: Transaction) -> EventAtTime:
            return event_at_time(txn, room_id, ts, forwards=forwards)

        return await self._database.run("event at a time", work, read_only=True)
