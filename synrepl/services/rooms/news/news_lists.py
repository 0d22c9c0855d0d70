"""A list for each user of what is new, with a bound: the other :class:`.NewsSource`.

Source: seed "Room event storage", "Streaming events": "An alternative is to store per user lists".
docs/adr/0026-what-is-new-for-a-user.md compares it with :class:`.ChangesCheck`, which is the default.
"""

from __future__ import annotations

from collections import OrderedDict

from synrepl.core.tokens import Token
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.news import ANY_NEWS, NO_NEWS, News
from synrepl.services.rooms.news.presence_check import PresenceCheck
from synrepl.services.rooms.news.recent_changes import ROOM_KINDS, ChangeKind
from synrepl.services.rooms.news.rooms_of_users import RoomsOfUsers
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.news.users_by_room import UsersByRoom

#: Entries of one list; beyond, the oldest are dropped.
MAX_ENTRIES = 100

#: Maximum number of lists, and of entries in the index from rooms to the users with a list.
MAX_LISTS = 50_000
MAX_INDEXED = 2_000_000


class NewsList:
    """What has changed for one user since a token.

    A change replaces an earlier one of the same kind, writer and room.

    :param start: everything later is here, or below the floor of its writer
    """

    __slots__ = ("_entries", "_floors", "_most", "start")

    def __init__(self, start: SyncToken, most: int) -> None:
        self.start = start
        self._most = most
        #: Tokens, in the order in which they came. The room is "" for changes of the user.
        self._entries: dict[tuple[ChangeKind, str, str], Token] = {}
        self._floors: dict[tuple[str, str], Token] = {}

    def add(self, kind: ChangeKind, writer: str, token: Token, room_id: str) -> None:
        """Add a change; if the list is full, the oldest one is dropped."""
        key = kind, writer, room_id
        self._entries.pop(key, None)
        self._entries[key] = token
        if len(self._entries) > self._most:
            oldest = next(iter(self._entries))
            self.forget(oldest[0].stream, oldest[1], self._entries.pop(oldest))

    def forget(self, stream: str, writer: str, token: Token) -> None:
        """Changes of a writer at or below a token may be missing."""
        key = stream, writer
        self._floors[key] = max(token, self._floors.get(key, 0))

    def reaches(self, since: SyncToken) -> bool:
        """Whether everything is here that is new since a token."""
        vectors = since.vectors if self._floors else {}
        return all(
            at.covers(start) for at, start in zip(since[1:], self.start[1:], strict=True)
        ) and all(vectors[stream][by] >= token for (stream, by), token in self._floors.items())

    def since(self, since: SyncToken) -> dict[ChangeKind, set[str]]:
        """The rooms of the changes since a token, by kind."""
        found: dict[ChangeKind, set[str]] = {}
        vectors = since.vectors
        for (kind, writer, room_id), token in self._entries.items():
            if token > vectors[kind.stream][writer]:
                found.setdefault(kind, set()).add(room_id)
        return found


class NewsLists:
    """A :class:`.NewsSource` that keeps a list for each user who asks.

    A check looks at the user's own list, whatever happens elsewhere; a change is added to the list of each user whom
    it concerns. A user who has no list, or asks for more than it has, gets :data:`.ANY_NEWS`, and a list from then on.
    """

    def __init__(
        self,
        applied: AppliedVectors,
        rooms: RoomsOfUsers,
        presence: PresenceCheck,
        max_entries: int = MAX_ENTRIES,
        max_lists: int = MAX_LISTS,
        max_indexed: int = MAX_INDEXED,
    ) -> None:
        self._applied = applied
        self._rooms = rooms
        self._presence = presence
        self._max_entries, self._max_lists, self._max_indexed = max_entries, max_lists, max_indexed
        #: In the order in which their users asked.
        self._lists: OrderedDict[str, NewsList] = OrderedDict()
        self._users = UsersByRoom()

    def __len__(self) -> int:
        """Number of lists."""
        return len(self._lists)

    # -- changes ----------------------------------------------------------------------

    def changed(self, kind: ChangeKind, writer: str, token: Token, entity: str | None) -> None:
        """Add a change to the lists that it belongs to."""
        if kind is ChangeKind.PRESENCE:
            self._presence.changed(writer, token, entity)
        elif entity is None:
            self._drop_all()
        elif kind in ROOM_KINDS:
            for user_id in self._users.users_in(entity):
                self._lists[user_id].add(kind, writer, token, entity)
        elif entity in self._lists:
            if kind is ChangeKind.MEMBERSHIP:
                self._drop(entity)
            else:
                self._lists[entity].add(kind, writer, token, "")

    def unknown_upto(self, stream: str, writer: str, token: Token) -> None:
        """Note that changes may be missing in all lists."""
        if stream == ChangeKind.PRESENCE.stream:
            self._presence.unknown_upto(writer, token)
        elif stream == ChangeKind.MEMBERSHIP.stream:
            self._drop_all()
        else:
            for each in self._lists.values():
                each.forget(stream, writer, token)

    # -- checks -----------------------------------------------------------------------

    async def news_for(self, user_id: str, since: SyncToken, upto: SyncToken) -> News:
        """What may be new for a user; see :meth:`.NewsSource.news_for`."""
        if since == upto:
            return NO_NEWS
        if user_id not in self._lists:
            await self._begin(user_id)
        has_presence = await self._presence.has_changed(user_id, since.presence, upto.presence)
        found = self._lists.get(user_id)  # it may have been dropped meanwhile
        if found is None or not found.reaches(since):
            return ANY_NEWS
        self._lists.move_to_end(user_id)
        new = found.since(since)
        if not new:
            return News(presence=True) if has_presence else NO_NEWS
        return News(
            rooms=frozenset(new.get(ChangeKind.ROOM, ())),
            receipts=frozenset(new.get(ChangeKind.RECEIPTS, ())),
            typing=frozenset(new.get(ChangeKind.TYPING, ())),
            account_data=ChangeKind.ACCOUNT_DATA in new,
            presence=has_presence,
            to_device=ChangeKind.TO_DEVICE in new,
            private_receipts=ChangeKind.PRIVATE_RECEIPTS in new,
        )

    async def _begin(self, user_id: str) -> None:
        """Begin a list, unless the user's rooms are just changing."""
        start = self._applied.current()
        found = await self._rooms.memberships_of(user_id)
        # Otherwise something may have happened in a room of the user, without a list.
        is_settled = not found.is_moving(found.rooms, start.events)
        if not is_settled or self._applied.current() is not start or user_id in self._lists:
            return
        self._lists[user_id] = NewsList(start, self._max_entries)
        self._users.add(user_id, found.joined_among(found.rooms, start.events))
        while len(self._lists) > 1 and (
            len(self._lists) > self._max_lists or self._users.indexed > self._max_indexed
        ):
            self._drop(next(iter(self._lists)))

    def _drop(self, user_id: str) -> None:
        del self._lists[user_id]
        self._users.remove(user_id)

    def _drop_all(self) -> None:
        self._lists.clear()
        self._users.clear()
