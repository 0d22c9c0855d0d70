"""Assembles what a process tells Matrix clients: timelines, news and syncs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from synrepl.daemon.assemble.client_data import ClientDataServices
from synrepl.daemon.assemble.ports import Ports
from synrepl.daemon.config.client_streams import client_stream_writers
from synrepl.daemon.config.config import Config
from synrepl.services.rooms.client_data.data_reader import ClientDataReader
from synrepl.services.rooms.client_data.device_registry import DeviceRegistry
from synrepl.services.rooms.client_data.ignored_users import (
    IgnoredBy,
    cached_ignored_users,
    nobody,
)
from synrepl.services.rooms.client_data.presence_tracker import PresenceTracker
from synrepl.services.rooms.client_data.typing_users import TypingRooms
from synrepl.services.rooms.full_state_wait import FullStateWait
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.changes_check import ChangesCheck
from synrepl.services.rooms.news.news_feed import NewsFeed
from synrepl.services.rooms.news.recent_changes import RecentChanges
from synrepl.services.rooms.news.rooms_of_users import RoomsOfUsers
from synrepl.services.rooms.news.token_wait import GivenOutTokens, TokenWait
from synrepl.services.rooms.news.waiting_syncs import WaitingSyncs
from synrepl.services.rooms.sync.stored_filters import StoredFilters
from synrepl.services.rooms.sync.sync import ClientSync
from synrepl.services.rooms.sync.user_data import UserData
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.storage.database import Database
from synrepl.storage.rooms.reading.rooms_of_user import rooms_of_users
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.synapse.account_data import ACCOUNT_DATA


@dataclass(frozen=True, slots=True)
class ClientNews:
    """What a process knows of news for clients, from the streams.

    :ivar applied: the positions of this process; has to hear of each that moves
    :ivar typing: who types where
    """

    database: Database
    applied: AppliedVectors
    rooms: RoomsOfUsers
    ignored_by: IgnoredBy
    typing: TypingRooms
    check: ChangesCheck
    waits: WaitingSyncs


@dataclass(frozen=True, slots=True)
class ClientReading:
    """What a process tells clients.

    :ivar full_states: waits for the states of partial rooms
    :ivar data: what it tells them besides the events of rooms
    """

    applied: AppliedVectors
    covered: TokenWait
    timelines: Timelines
    data: UserData
    waits: WaitingSyncs
    sync: ClientSync
    filters: StoredFilters
    full_states: FullStateWait


def assemble_news(
    config: Config, ports: Ports, database: Database | None, catalogue: Catalogue
) -> ClientNews | None:
    """Make what decides whether anything is new; None without a listener for clients."""
    if config.rooms is None or config.rooms.clients is None or database is None:
        return None
    applied = AppliedVectors(ports.scheduler, config.server_name)

    async def load(users: Collection[str]) -> Mapping[str, frozenset[str]]:
        known = applied.current().events
        return await database.run(
            "rooms of users", lambda txn: rooms_of_users(txn, users, known), read_only=True
        )

    rooms = RoomsOfUsers(ports.coherence.caches, load)
    check = ChangesCheck(RecentChanges(), rooms)
    waits = WaitingSyncs(ports.scheduler, applied, rooms.rooms_of)
    feed = NewsFeed([check, waits])
    typing = TypingRooms()
    ports.coherence.observers += [typing, feed]
    applied.listeners.append(feed.moved)
    ignored_by: IgnoredBy = nobody
    if ACCOUNT_DATA.name in client_stream_writers(config, catalogue):
        ignored_by = cached_ignored_users(ports.coherence.caches, database)
    return ClientNews(database, applied, rooms, ignored_by, typing, check, waits)


def assemble_reading(
    ports: Ports,
    news: ClientNews | None,
    changes: ClientDataServices | None,
    given_out: GivenOutTokens,
) -> ClientReading | None:
    """Make what answers clients; None without a listener for them."""
    if news is None or changes is None:
        return None
    scheduler, log, database = ports.scheduler, ports.log, news.database
    covered = TokenWait(scheduler, news.applied, given_out)
    timelines = Timelines(database, scheduler)
    data = UserData(
        database,
        ClientDataReader(news.typing),
        news.rooms.rooms_of,
        news.ignored_by,
        PresenceTracker(scheduler, changes.presence, log),
        DeviceRegistry(scheduler, database, log),
    )
    sync = ClientSync(
        scheduler, timelines, data, news.applied, covered, news.check, news.waits, log
    )
    filters = StoredFilters(database)
    full_states = FullStateWait(scheduler)
    ports.coherence.observers.append(full_states)
    return ClientReading(
        news.applied, covered, timelines, data, news.waits, sync, filters, full_states
    )
