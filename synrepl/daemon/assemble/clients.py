"""Assembles what a process tells Matrix clients: timelines, news and syncs."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.daemon.assemble.client_data import ClientDataServices
from synrepl.daemon.assemble.ports import Ports
from synrepl.daemon.config.client_api import ClientApiConfig
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
from synrepl.services.rooms.news.gap_wait import GapWait
from synrepl.services.rooms.news.linear_positions import LinearPositions
from synrepl.services.rooms.news.news import NewsSource
from synrepl.services.rooms.news.news_feed import NewsFeed
from synrepl.services.rooms.news.news_lists import NewsLists
from synrepl.services.rooms.news.presence_check import PresenceCheck
from synrepl.services.rooms.news.recent_changes import RecentChanges
from synrepl.services.rooms.news.rooms_of_users import RoomsOfUsers
from synrepl.services.rooms.news.rooms_reader import RoomsReader
from synrepl.services.rooms.news.sync_token import SYNC_STREAMS
from synrepl.services.rooms.news.token_wait import GivenOutTokens, TokenWait
from synrepl.services.rooms.news.waiting_syncs import WaitingSyncs
from synrepl.services.rooms.sliding.connections import SlidingConnections
from synrepl.services.rooms.sliding.room_labels import LabelsOf, cached_labels, no_labels
from synrepl.services.rooms.sliding.room_lists import RoomListCache
from synrepl.services.rooms.sliding.sliding_sync import SlidingSync
from synrepl.services.rooms.sync.stored_filters import StoredFilters
from synrepl.services.rooms.sync.sync import ClientSync
from synrepl.services.rooms.sync.user_data import UserData
from synrepl.services.rooms.timelines.plain_reads import PlainReads
from synrepl.services.rooms.timelines.room_tails import RoomTails
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.storage.database import Database
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.synapse.account_data import ACCOUNT_DATA


@dataclass(frozen=True, slots=True)
class ClientNews:
    """What a process knows of news for clients, from the streams.

    :ivar server: name of the server
    :ivar applied: the positions of this process; has to hear of each that moves
    :ivar typing: who types where
    """

    server: str
    database: Database
    applied: AppliedVectors
    rooms: RoomsOfUsers
    ignored_by: IgnoredBy
    labels_of: LabelsOf
    typing: TypingRooms
    tails: RoomTails
    source: NewsSource
    waits: WaitingSyncs
    feed: NewsFeed


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
    sliding: SlidingSync
    filters: StoredFilters
    full_states: FullStateWait


def assemble_news(
    config: Config, ports: Ports, database: Database | None, catalogue: Catalogue
) -> ClientNews | None:
    """Make what decides whether anything is new; None without a listener for clients."""
    if config.rooms is None or config.rooms.clients is None or database is None:
        return None
    applied = AppliedVectors(ports.scheduler, config.server_name)
    reader = RoomsReader(ports.scheduler, database, applied)
    rooms = RoomsOfUsers(ports.coherence.caches, reader.rooms_of)
    source = _news_source(config.rooms.clients, applied, rooms)
    tails = RoomTails(ports.scheduler, database)
    waits = WaitingSyncs(ports.scheduler, applied, rooms.rooms_of)
    feed = NewsFeed([source, tails, waits])
    typing = TypingRooms()
    ports.coherence.observers += [typing, feed]
    applied.listeners.append(feed.moved)
    ignored_by: IgnoredBy = nobody
    labels_of: LabelsOf = no_labels
    if ACCOUNT_DATA.name in client_stream_writers(config, catalogue):
        ignored_by = cached_ignored_users(ports.coherence.caches, database)
        labels_of = cached_labels(ports.coherence.caches, database)
    return ClientNews(
        config.server_name,
        database,
        applied,
        rooms,
        ignored_by,
        labels_of,
        typing,
        tails,
        source,
        waits,
        feed,
    )


def _news_source(
    section: ClientApiConfig, applied: AppliedVectors, rooms: RoomsOfUsers
) -> ChangesCheck | NewsLists:
    if section.news == "lists":
        return NewsLists(applied, rooms, PresenceCheck(RecentChanges(), rooms))
    return ChangesCheck(RecentChanges(), rooms)


def assemble_linear(
    ports: Ports, news: ClientNews | None, catalogue: Catalogue
) -> LinearPositions | None:
    """Make what finds the linear positions of a worker; None without a listener for clients."""
    if news is None:
        return None
    names = [s.name for s in SYNC_STREAMS if s.name in catalogue and not s.in_memory]
    return LinearPositions(
        ports.scheduler, news.database, names, news.applied, news.feed.unknown_upto, ports.log
    )


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
    timelines = Timelines(
        database,
        scheduler,
        news.tails,
        GapWait(news.applied, covered),
        None if ports.plain is None else PlainReads(ports.plain, scheduler, log),
    )
    data = UserData(
        database,
        ClientDataReader(news.typing),
        news.rooms.rooms_of,
        news.ignored_by,
        PresenceTracker(scheduler, changes.presence, log),
        DeviceRegistry(scheduler, database, log),
    )
    sync = ClientSync(
        scheduler, timelines, data, news.applied, covered, news.source, news.waits, log
    )
    sliding = SlidingSync(
        news.server,
        scheduler,
        data,
        SlidingConnections(database, scheduler, log),
        RoomListCache(),
        news.applied,
        covered,
        news.source,
        news.waits,
        news.labels_of,
        log,
    )
    filters = StoredFilters(database)
    full_states = FullStateWait(scheduler)
    ports.coherence.observers.append(full_states)
    return ClientReading(
        news.applied, covered, timelines, data, news.waits, sync, sliding, filters, full_states
    )
