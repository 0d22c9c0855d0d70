"""Assembles what a process tells Matrix clients: timelines, news and syncs."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.daemon.assemble.ports import Ports
from synrepl.daemon.config.client_api import ClientApiConfig
from synrepl.daemon.config.config import Config
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.changes_check import ChangesCheck
from synrepl.services.rooms.news.news import NewsSource
from synrepl.services.rooms.news.news_feed import NewsFeed
from synrepl.services.rooms.news.news_lists import NewsLists
from synrepl.services.rooms.news.presence_check import PresenceCheck
from synrepl.services.rooms.news.recent_changes import RecentChanges
from synrepl.services.rooms.news.rooms_of_users import RoomsOfUsers
from synrepl.services.rooms.news.rooms_reader import RoomsReader
from synrepl.services.rooms.news.token_wait import GivenOutTokens, TokenWait
from synrepl.services.rooms.news.waiting_syncs import WaitingSyncs
from synrepl.services.rooms.sync.stored_filters import StoredFilters
from synrepl.services.rooms.sync.sync import ClientSync
from synrepl.services.rooms.timelines.room_tails import RoomTails
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.storage.database import Database


@dataclass(frozen=True, slots=True)
class ClientNews:
    """What a process knows of news for clients, from the streams.

    :ivar applied: the positions of this process; has to hear of each that moves
    """

    database: Database
    applied: AppliedVectors
    tails: RoomTails
    source: NewsSource
    waits: WaitingSyncs


@dataclass(frozen=True, slots=True)
class ClientReading:
    """What a process tells clients."""

    applied: AppliedVectors
    covered: TokenWait
    timelines: Timelines
    waits: WaitingSyncs
    sync: ClientSync
    filters: StoredFilters


def assemble_news(config: Config, ports: Ports, database: Database | None) -> ClientNews | None:
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
    ports.coherence.observers.append(feed)
    applied.listeners.append(feed.moved)
    return ClientNews(database, applied, tails, source, waits)


def _news_source(
    section: ClientApiConfig, applied: AppliedVectors, rooms: RoomsOfUsers
) -> ChangesCheck | NewsLists:
    if section.news == "lists":
        return NewsLists(applied, rooms, PresenceCheck(RecentChanges(), rooms))
    return ChangesCheck(RecentChanges(), rooms)


def assemble_reading(
    ports: Ports, news: ClientNews | None, given_out: GivenOutTokens
) -> ClientReading | None:
    """Make what answers clients; None without a listener for them."""
    if news is None:
        return None
    scheduler = ports.scheduler
    covered = TokenWait(scheduler, news.applied, given_out)
    timelines = Timelines(news.database, scheduler, news.tails)
    sync = ClientSync(
        scheduler, timelines, news.applied, covered, news.source, news.waits, ports.log
    )
    filters = StoredFilters(news.database)
    return ClientReading(news.applied, covered, timelines, news.waits, sync, filters)
