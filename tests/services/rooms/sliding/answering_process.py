"""A process that answers sliding sync: it applies facts from the tables, as far as a test says."""

from __future__ import annotations

from typing import Any

from synrepl.adapters.caches import make_caches
from synrepl.core.tokens import Range, Token
from synrepl.positions.vector import PositionVector
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.forwarding import NoOtherWriters, WriterActions
from synrepl.services.rooms.client_data.data_reader import ClientDataReader
from synrepl.services.rooms.client_data.device_registry import DeviceRegistry
from synrepl.services.rooms.client_data.ignored_users import nobody
from synrepl.services.rooms.client_data.presence import PresenceService
from synrepl.services.rooms.client_data.presence_tracker import PresenceTracker
from synrepl.services.rooms.client_data.stream_writers import DataWriters
from synrepl.services.rooms.client_data.typing_users import TypingRooms
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.changes_check import ChangesCheck
from synrepl.services.rooms.news.news_feed import NewsFeed
from synrepl.services.rooms.news.recent_changes import RecentChanges
from synrepl.services.rooms.news.rooms_of_users import RoomsOfUsers
from synrepl.services.rooms.news.rooms_reader import RoomsReader
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.news.token_wait import TokenWait
from synrepl.services.rooms.news.waiting_syncs import WaitingSyncs
from synrepl.services.rooms.sliding.connections import SlidingConnections
from synrepl.services.rooms.sliding.room_labels import no_labels
from synrepl.services.rooms.sliding.room_lists import RoomListCache
from synrepl.services.rooms.sliding.sliding_request import SlidingRequest
from synrepl.services.rooms.sliding.sliding_sync import SlidingAnswer, SlidingSync
from synrepl.services.rooms.sync.user_data import UserData
from synrepl.services.sources import LINEAR
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.caches import CACHES
from synrepl.streams.synapse.events import EVENTS
from tests.services.world import NullLog
from tests.storage.postgres import Process

SERVER = "a"

_PAGE = 100_000


class _AllGivenOut:
    """Every token was given out."""

    async def was_given_out(self, stream: Stream, token: Token) -> bool:
        return True


class AnsweringProcess:
    """A process that answers.

    :param process: gives the database
    """

    def __init__(self, process: Process) -> None:
        scheduler: Any = process.scheduler
        log: Any = NullLog()
        database = process.database
        self._store = process.store
        self._reached: dict[tuple[str, str], Token] = {}
        self.coherence = Coherence(make_caches(), Catalogue(ROOM_STREAMS), log)
        self.applied = AppliedVectors(scheduler, SERVER)
        reader = RoomsReader(scheduler, database, self.applied)
        rooms = RoomsOfUsers(self.coherence.caches, reader.rooms_of)
        check = ChangesCheck(RecentChanges(), rooms)
        waits = WaitingSyncs(scheduler, self.applied, rooms.rooms_of)
        feed = NewsFeed([check, waits])
        self.coherence.observers.append(feed)
        self.applied.listeners.append(feed.moved)
        self.connections = SlidingConnections(database, scheduler, log)
        self.lists = RoomListCache()
        writers = DataWriters("one", None, {}, NoOtherWriters(), WriterActions(()))
        presence = PresenceService(scheduler, database, writers, log)
        data = UserData(
            database,
            ClientDataReader(TypingRooms()),
            rooms.rooms_of,
            nobody,
            PresenceTracker(scheduler, presence, log),
            DeviceRegistry(scheduler, database, log),
        )
        self.sliding = SlidingSync(
            SERVER,
            scheduler,
            data,
            self.connections,
            self.lists,
            self.applied,
            TokenWait(scheduler, self.applied, _AllGivenOut(), 0.0),
            check,
            waits,
            no_labels,
            log,
        )

    async def apply(self, upto: PositionVector) -> None:
        """Apply the facts that a vector of ``events`` covers, and that this process does not have."""
        for stream in (EVENTS, CACHES):
            for writer in ("one", "two"):
                before = self._reached.get((stream.name, writer), 0)
                last = upto[writer] if stream is EVENTS else upto.highest
                if last <= before:
                    continue
                page = await self._store.page(stream, Range(before, last), writer, _PAGE)
                self.coherence.apply(stream.name, writer, before, page.facts)
                self._reached[stream.name, writer] = last
                self.applied.moved(stream.name, writer, last)
        self.applied.moved(EVENTS.name, LINEAR, upto.linear)

    async def ask(self, identity: ClientIdentity, request: SlidingRequest) -> SlidingAnswer:
        """Answer a request."""
        return await self.sliding.sync(identity, request)

    def may_answer(self, token: SyncToken) -> bool:
        """Whether it need not wait for what a token covers; it may still be behind in an idle writer."""
        return next(self.applied.missing(token), None) is None
