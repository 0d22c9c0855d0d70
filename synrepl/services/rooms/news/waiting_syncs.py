"""Syncs that wait for news: woken by changes of the rooms and users that they are about.

A user is *watched* from the first wait on, and stays so over successive ones: an index leads from each room to the watched
users in it. So an idle poll costs nothing for each of the user's rooms, and a change costs as much as it wakes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import Unavailable
from synrepl.core.slices import Slices
from synrepl.core.tokens import Token
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.recent_changes import ROOM_KINDS, ChangeKind
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.news.users_by_room import UsersByRoom

#: Maximum number of syncs that wait, and of entries in the index from rooms to watched users.
MAX_WAITING = 50_000
MAX_INDEXED = 2_000_000

#: Units of :class:`.Slices` for waking a sync, which then reads and answers.
_COST = 20


class TooManySyncs(Unavailable):
    """{most} syncs wait in this process already; try again later"""


class _Watched:
    """A watched user.

    :ivar waiting: the promises of the user's waits
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: set[Promise[bool]] = set()


class WaitingSyncs:
    """Waits for news of users; a :class:`.ChangeListener`.

    :param rooms_of: the rooms that a user is in
    """

    def __init__(
        self,
        scheduler: Scheduler,
        applied: AppliedVectors,
        rooms_of: Callable[[str], Awaitable[frozenset[str]]],
        max_waiting: int = MAX_WAITING,
        max_indexed: int = MAX_INDEXED,
    ) -> None:
        self._scheduler = scheduler
        self._slices = Slices(scheduler)
        self._applied = applied
        self._rooms_of = rooms_of
        self._max_waiting = max_waiting
        self._max_indexed = max_indexed
        self._watched: OrderedDict[str, _Watched] = OrderedDict()
        self._users = UsersByRoom()
        self._waiting = 0
        self._woken: dict[Promise[bool], None] = {}
        self._is_waking = False

    def __len__(self) -> int:
        """Number of syncs that wait."""
        return self._waiting

    @property
    def indexed(self) -> int:
        """Number of entries in the index from rooms to watched users."""
        return self._users.indexed

    async def wait(self, user_id: str, upto: SyncToken, timeout_s: float) -> bool:
        """Wait until something may be new for a user. It may be cancelled.

        :param upto: up to here nothing was new
        :param timeout_s: the longest wait, in seconds
        :returns: False if it ended without any news
        :raises TooManySyncs: the limit is reached
        :raises SynreplError: the rooms of the user are not cached, and cannot be read now
        """
        if self._waiting >= self._max_waiting:
            raise TooManySyncs(most=self._max_waiting)
        watched = await self._watch(user_id)
        if self._applied.current() != upto:
            return True  # it may have been before the user was watched
        promise: Promise[bool] = self._scheduler.promise()
        watched.waiting.add(promise)
        self._waiting += 1
        timer = self._scheduler.callLater(timeout_s, self._end, watched, promise)
        try:
            return await promise
        finally:  # also when the caller is cancelled
            if timer.active():
                timer.cancel()
            watched.waiting.discard(promise)
            self._woken.pop(promise, None)
            self._waiting -= 1

    async def _watch(self, user_id: str) -> _Watched:
        """Begin to watch a user, or go on."""
        while True:
            found = self._watched.get(user_id)
            if found is not None:
                self._watched.move_to_end(user_id)
                return found
            before = self._applied.current()
            rooms = await self._rooms_of(user_id)
            # Otherwise a membership may have changed meanwhile, without anybody noticing.
            if self._applied.current() is before and user_id not in self._watched:
                break
        watched = self._watched[user_id] = _Watched()
        self._users.add(user_id, rooms)
        self._make_room()
        return watched

    def _make_room(self) -> None:
        """Cease to watch users that do not wait, those first that waited longest ago."""
        if not self._is_full:
            return
        for user_id in list(self._watched):
            if not self._is_full:
                return
            if not self._watched[user_id].waiting and user_id != next(reversed(self._watched)):
                self._cease(user_id)

    @property
    def _is_full(self) -> bool:
        return self._users.indexed > self._max_indexed or len(self._watched) > self._max_waiting

    def _cease(self, user_id: str) -> None:
        del self._watched[user_id]
        self._users.remove(user_id)

    # -- changes ----------------------------------------------------------------------

    def changed(self, kind: ChangeKind, writer: str, token: Token, entity: str | None) -> None:
        """Wake those whom a change concerns, once the position of its writer has moved."""
        if entity is None:
            for user_id in list(self._watched):
                self._wake_user(user_id, is_moved=kind is ChangeKind.MEMBERSHIP)
        elif kind in ROOM_KINDS:
            for user_id in self._users.users_in(entity):
                self._woken.update(dict.fromkeys(self._watched[user_id].waiting))
        elif entity in self._watched:
            self._wake_user(entity, is_moved=kind is ChangeKind.MEMBERSHIP)
        self._wake_later()

    def unknown_upto(self, stream: str, writer: str, token: Token) -> None:
        """Wake everybody: what was missed may concern anybody."""
        for user_id in list(self._watched):
            self._wake_user(user_id, is_moved=stream == "events")
        self._wake_later()

    def _wake_user(self, user_id: str, *, is_moved: bool) -> None:
        """Wake a user.

        :param is_moved: whether the user's rooms may be others now
        """
        self._woken.update(dict.fromkeys(self._watched[user_id].waiting))
        if is_moved:
            self._cease(user_id)

    def _wake_later(self) -> None:
        if self._woken and not self._is_waking:
            self._is_waking = True
            # In the next turn, when the position is among those of the process.
            self._scheduler.callLater(0, self._begin_to_wake)

    def _begin_to_wake(self) -> None:
        self._scheduler.spawn("wake syncs", self._wake())

    async def _wake(self) -> None:
        try:
            while self._woken:
                promise = next(iter(self._woken))
                del self._woken[promise]
                promise.callback(True)
                await self._slices.step(_COST)
        finally:
            self._is_waking = False
            self._wake_later()

    def _end(self, watched: _Watched, promise: Promise[bool]) -> None:
        """End a wait by its timer, unless it is over."""
        if promise in watched.waiting and promise not in self._woken:
            watched.waiting.discard(promise)
            promise.callback(False)
