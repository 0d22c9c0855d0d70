"""What a sync needs to know of its user and device, besides rooms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.rooms.client_data.data import NO_DATA, ClientData, DataRooms
from synrepl.services.rooms.client_data.data_reader import ClientDataReader
from synrepl.services.rooms.client_data.device_registry import DeviceRegistry
from synrepl.services.rooms.client_data.ignored_users import IgnoredBy
from synrepl.services.rooms.client_data.presence_tracker import PresenceTracker
from synrepl.services.rooms.news.news import ANY_NEWS, News
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.timelines.client_filter import ClientFilter
from synrepl.services.rooms.timelines.updates import RoomsUpdate, TimelineReader
from synrepl.storage.database import Database, Transaction

_MEMBER = "m.room.member"


@dataclass(frozen=True, slots=True)
class UserData:
    """Reads what users are told besides the events of rooms.

    :ivar rooms: the rooms that a user is in, cached
    :ivar ignored_by: the users that a user ignores, cached
    """

    database: Database
    data: ClientDataReader
    rooms: Callable[[str], Awaitable[frozenset[str]]]
    ignored_by: IgnoredBy
    presence: PresenceTracker
    devices: DeviceRegistry

    async def reader_of(self, identity: ClientIdentity) -> TimelineReader:
        """Who reads, and whom the user ignores."""
        return TimelineReader(*identity, await self.ignored_by(identity.user_id))

    async def first(
        self,
        reader: TimelineReader,
        upto: SyncToken,
        joined: Collection[str],
        left: Collection[str],
        wanted: ClientFilter,
    ) -> ClientData:
        """Everything, for rooms that are told from the start."""
        rooms = DataRooms(joined, joined, left=left)
        return await self._read(reader, None, upto, ANY_NEWS, rooms, wanted)

    async def since(
        self,
        reader: TimelineReader,
        since: SyncToken,
        upto: SyncToken,
        news: News,
        update: RoomsUpdate,
        wanted: ClientFilter,
    ) -> ClientData:
        """What is new, and everything of rooms that are new by an update; nothing is read if nothing can be new."""
        new = DataRooms(
            whole=[room_id for room_id, room in update.joined.items() if room.is_new],
            new_members=_new_members(reader, update) if self.presence.is_served else (),
            left=update.left,
        )
        if not self.data.needs_reading(news, new):
            return NO_DATA
        joined = await self.rooms(reader.user_id)
        if update.left:
            joined = joined.difference(update.left)
        if new.whole:
            joined = joined.union(new.whole)
        return await self._read(reader, since, upto, news, new._replace(joined=joined), wanted)

    async def _read(
        self,
        reader: TimelineReader,
        since: SyncToken | None,
        upto: SyncToken,
        news: News,
        rooms: DataRooms,
        wanted: ClientFilter,
    ) -> ClientData:
        def work(txn: Transaction) -> ClientData:
            return self.data.read(txn, reader, since, upto, news, rooms, wanted)

        return await self.database.run("client data", work, read_only=True)


def _new_members(reader: TimelineReader, update: RoomsUpdate) -> set[str]:
    """The users whose memberships an update shows, but for the reader."""
    return {
        event.state_key
        for room in update.joined.values()
        for event in room.timeline.events
        if event.type == _MEMBER and event.state_key not in (None, reader.user_id)
    }
