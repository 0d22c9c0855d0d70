"""Assembles what a process tells Matrix clients: timelines, news and syncs."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.daemon.assemble.ports import Ports
from synrepl.daemon.config.config import Config
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
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.storage.database import Database
from synrepl.storage.rooms.reading.rooms_of_user import rooms_of_user


@dataclass(frozen=True, slots=True)
class ClientNews:
    """What a process knows of news for clients, from the streams.

    :ivar applied: the positions of this process; has to hear of each that moves
    """

    database: Database
    applied: AppliedVectors
    check: ChangesCheck
    waits: WaitingSyncs


@dataclass(frozen=True, slots=True)
class ClientReading:
    """What a process tells clients.

    :ivar full_states: waits for the states of partial rooms
    """

    applied: AppliedVectors
    covered: TokenWait
    timelines: Timelines
    waits: WaitingSyncs
    sync: ClientSync
    filters: StoredFilters
    full_states: FullStateWait


def assemble_news(config: Config, ports: Ports, database: Database | None) -> ClientNews | None:
    """Make what decides whether anything is new; None without a listener for clients."""
    if config.rooms is None or config.rooms.clients is None or database is None:
        return None
    applied = AppliedVectors(ports.scheduler, config.server_name)

    async def load(user_id: str) -> frozenset[str]:
        known = applied.current().events
        return await database.run(
            "rooms of a user", lambda txn: rooms_of_user(txn, user_id, known), read_only=True
        )

    rooms = RoomsOfUsers(ports.coherence.caches, load)
    check = ChangesCheck(RecentChanges(), rooms)
    waits = WaitingSyncs(ports.scheduler, applied, rooms.rooms_of)
    feed = NewsFeed([check, waits])
    ports.coherence.observers.append(feed)
    applied.listeners.append(feed.moved)
    return ClientNews(database, applied, check, waits)


def assemble_reading(
    ports: Ports, news: ClientNews | None, given_out: GivenOutTokens
) -> ClientReading | None:
    """Make what answers clients; None without a listener for them."""
    if news is None:
        return None
    scheduler = ports.scheduler
    covered = TokenWait(scheduler, news.applied, given_out)
    timelines = Timelines(news.database, scheduler)
    sync = ClientSync(
        scheduler, timelines, news.applied, covered, news.check, news.waits, ports.log
    )
    filters = StoredFilters(news.database)
    full_states = FullStateWait(scheduler)
    ports.coherence.observers.append(full_states)
    return ClientReading(news.applied, covered, timelines, news.waits, sync, filters, full_states)
