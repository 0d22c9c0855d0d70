"""Streams, caches and memberships of a process, for tests of what decides whether anything is new.

A fact is committed, then settled (caches drop what it makes stale), and then its writer's position moves, as on a master.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred

from synrepl.adapters.caches import make_caches
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.positions.vector import PositionVector
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.changes_check import ChangesCheck
from synrepl.services.rooms.news.news import News
from synrepl.services.rooms.news.news_feed import NewsFeed
from synrepl.services.rooms.news.news_lists import NewsLists
from synrepl.services.rooms.news.presence_check import PresenceCheck
from synrepl.services.rooms.news.recent_changes import RecentChanges
from synrepl.services.rooms.news.rooms_of_users import RoomsOfUsers
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.storage.rooms.reading.rooms_of_user import MovingRoom, RoomsOfUser
from synrepl.storage.rooms.timelines.room_entries import MEMBER
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Fact
from synrepl.streams.row import Row
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.streams.synapse.events import EventRow, StateRow
from tests.services.world import NullLog, manual_clock

WRITERS = ("one", "two")

#: Streams in which several processes write here; in the others only the first does.
_EVENTS = "events"

Source = ChangesCheck | NewsLists


class StoredMembership(NamedTuple):
    """A membership as it is in the tables.

    :ivar token: of the fact that set it
    """

    writer: str
    token: int
    is_joined: bool


class NewsWorld:
    """One process.

    :param make: makes the source
    :ivar source: what is tested
    :ivar loads: users whose rooms were read
    :ivar gate: reads of rooms wait for it
    :ivar history: the facts whose position has moved, in that order
    """

    def __init__(self, make: Callable[[AppliedVectors, RoomsOfUsers], Source]) -> None:
        scheduler = TwistedScheduler(manual_clock())
        self.applied = AppliedVectors(scheduler, "x")
        caches = make_caches()
        self.loads: list[str] = []
        self.gate: Deferred[None] | None = None
        self.source = make(self.applied, RoomsOfUsers(caches, self._load))
        self._coherence = Coherence(caches, Catalogue(SYNAPSE_STREAMS), NullLog())
        feed = NewsFeed([self.source])
        self._coherence.observers.append(feed)
        self.applied.listeners.append(feed.moved)
        self._tables: dict[tuple[str, str], StoredMembership] = {}
        self._committed: dict[tuple[str, str], deque[Fact]] = {}
        self._settled: dict[tuple[str, str], deque[Fact]] = {}
        self._last: dict[str, int] = {}
        self.history: list[tuple[str, Fact]] = []
        for stream in ("receipts", "typing", "account_data", "presence", "to_device", _EVENTS):
            for writer in WRITERS if stream == _EVENTS else WRITERS[:1]:
                self._coherence.begin(stream, writer, 0)
                self.applied.moved(stream, writer, 0)

    async def _load(self, user_ids: Collection[str]) -> Mapping[str, RoomsOfUser]:
        self.loads.extend(user_ids)
        applied = self.applied.current().events
        found = {user_id: self._rooms_of(user_id, applied) for user_id in user_ids}
        if self.gate is not None:
            await self.gate
        return found

    def _rooms_of(self, user_id: str, applied: PositionVector) -> RoomsOfUser:
        rooms: set[str] = set()
        moving: dict[str, MovingRoom] = {}
        for (user, room_id), each in self._tables.items():
            is_moving = each.token > applied[each.writer]
            if user == user_id and (each.is_joined or is_moving):
                rooms.add(room_id)
                if is_moving:
                    moving[room_id] = MovingRoom(*each)
        return RoomsOfUser(frozenset(rooms), moving)

    # -- facts ------------------------------------------------------------------------

    def commit(self, stream: str, *rows: Row, writer: str = "one") -> int:
        """A writer commits a fact; its token."""
        token = self._last[stream] = self._last.get(stream, 0) + 1
        for row in rows:
            if isinstance(row, StateRow) and row.type == MEMBER:
                is_joined = row.event_id is not None
                self._tables[row.state_key, row.room_id] = StoredMembership(
                    writer, token, is_joined
                )
        self._committed.setdefault((stream, writer), deque()).append(Fact(token, writer, rows))
        return token

    def settle(self, stream: str = _EVENTS, writer: str = "one") -> None:
        """The next fact makes caches stale."""
        fact = self._committed[stream, writer].popleft()
        self._coherence.apply(stream, writer, 0, [fact])
        self._settled.setdefault((stream, writer), deque()).append(fact)

    def move(self, stream: str = _EVENTS, writer: str = "one") -> None:
        """The position of a writer moves to its next settled fact."""
        fact = self._settled[stream, writer].popleft()
        self.applied.moved(stream, writer, fact.token)
        self.history.append((stream, fact))

    def happen(self, stream: str, *rows: Row, writer: str = "one") -> None:
        """A fact is committed and applied."""
        self.commit(stream, *rows, writer=writer)
        while self._committed.get((stream, writer)):
            self.settle(stream, writer)
        while self._settled.get((stream, writer)):
            self.move(stream, writer)

    def ready(self) -> list[Callable[[], None]]:
        """What may happen next to facts that are not applied."""

        def step(call: Callable[[str, str], None], key: tuple[str, str]) -> Callable[[], None]:
            return lambda: call(*key)

        return [step(self.settle, key) for key, facts in self._committed.items() if facts] + [
            step(self.move, key) for key, facts in self._settled.items() if facts
        ]

    def lose(self, stream: str, writer: str) -> None:
        """Facts of a writer were lost, up to its position."""
        self._coherence.reset(stream, writer, self.applied.writers(stream)[writer])

    # -- checks -----------------------------------------------------------------------

    def now(self) -> SyncToken:
        """The token of everything that is applied."""
        return self.applied.current()

    def news(self, user_id: str, since: SyncToken) -> News:
        """What is new for a user; nothing may be waited for."""
        return result_of(self.source.news_for(user_id, since, self.now()))

    def was_joined(self, user_id: str, room_id: str, at: SyncToken) -> bool:
        """Whether a user was in a room as of a token, by the facts."""
        newest, found = 0, False
        for stream, fact in self.history:
            for row in fact.rows:
                if not isinstance(row, StateRow) or fact.token < newest:
                    continue
                is_it = (row.room_id, row.type, row.state_key) == (room_id, MEMBER, user_id)
                if is_it and fact.token <= at.vectors[stream][fact.writer]:
                    newest, found = fact.token, row.event_id is not None
        return found


def result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    found: list[Any] = []
    Deferred.fromCoroutine(coroutine).addBoth(found.append)
    assert found, "it waits"
    return found[0]


def message(room_id: str) -> EventRow:
    """A message in a room."""
    return EventRow("$e", room_id, "m.room.message", None, None, None)


def membership(user_id: str, room_id: str, is_joined: bool = True) -> StateRow:
    """A user joins or leaves a room."""
    return StateRow(room_id, MEMBER, user_id, "$m" if is_joined else None)


def changes_check(applied: AppliedVectors, rooms: RoomsOfUsers) -> Source:
    """The three caches."""
    return ChangesCheck(RecentChanges(), rooms)


def news_lists(applied: AppliedVectors, rooms: RoomsOfUsers) -> Source:
    """The lists of users, which are short."""
    return NewsLists(applied, rooms, PresenceCheck(RecentChanges(), rooms), max_entries=5)
