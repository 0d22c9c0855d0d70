"""Whether anything is new for a user: the three caches and the lists of users, side by side, and syncs that wait.

Both sources get the same changes. They are measured in the process, without streams and HTTP.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Collection, Iterator, Mapping
from statistics import median
from time import process_time
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred

from benchmarks.coroutines import result_of
from benchmarks.harness import Bound, Row, Scale, at_most
from benchmarks.running_master import SERVER_NAME
from synrepl.adapters.caches import make_caches
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.changes_check import ChangesCheck
from synrepl.services.rooms.news.news_lists import NewsLists
from synrepl.services.rooms.news.presence_check import PresenceCheck
from synrepl.services.rooms.news.recent_changes import ChangeKind, RecentChanges
from synrepl.services.rooms.news.rooms_of_users import RoomsOfUsers
from synrepl.services.rooms.news.waiting_syncs import WaitingSyncs
from synrepl.storage.rooms.reading.rooms_of_user import RoomsOfUser

_USER = f"@user:{SERVER_NAME}"
_TIMES = 15

#: Rooms of the user whose checks are measured.
_ROOMS = (20, 5_000)

#: Users in the room that changes, and how many of them have asked lately.
_MEMBERS = ((100, 10), (10_000, 100), (10_000, 1_000), (10_000, 10_000))

#: Rooms of each user whose memory is measured, and rooms that change meanwhile.
_USERS, _ROOMS_EACH, _CHANGED = 1_000, 50, 200

#: Syncs that wait, and those of them that one event wakes.
_WAITING, _WOKEN = 10_000, 1_000

Source = ChangesCheck | NewsLists


class _World:
    """A source, and the positions of its process.

    :param rooms: of each user
    """

    def __init__(self, name: str, rooms: Callable[[str], frozenset[str]]) -> None:
        async def load(user_ids: Collection[str]) -> Mapping[str, RoomsOfUser]:
            return {user_id: RoomsOfUser(rooms(user_id)) for user_id in user_ids}

        loop: Any = reactor
        self.applied = AppliedVectors(TwistedScheduler(loop), SERVER_NAME)
        of_users = RoomsOfUsers(make_caches(), load)
        recent = RecentChanges()
        self.source: Source = (
            NewsLists(self.applied, of_users, PresenceCheck(recent, of_users))
            if name == "lists"
            else ChangesCheck(recent, of_users)
        )
        self.token = 0
        self.source.unknown_upto("events", "master", 0)
        self.move()

    def change(self, room_id: str) -> None:
        """A room changes."""
        self.token += 1
        self.source.changed(ChangeKind.ROOM, "master", self.token, room_id)

    def move(self) -> None:
        """The position moves, by a fact that says nothing about rooms."""
        self.token += 1
        self.applied.moved("events", "master", self.token)
        self.applied.moved("events", "", self.token)

    def ask(self, user_id: str, since: Any) -> Any:
        """What is new for a user."""
        return result_of(self.source.news_for(user_id, since, self.applied.current()))


def run(scale: Scale) -> Iterator[Row]:
    """CPU time of checks and of changes; memory; waits."""
    for rooms in _ROOMS:
        for changes in (0, 1, 200):
            for name in ("changes", "lists"):
                yield _check(name, rooms, changes, is_new=False)
        for name in ("changes", "lists"):
            yield _check(name, rooms, 200, is_new=True)
    for members, active in _MEMBERS:
        for name in ("changes", "lists"):
            yield _change(name, scale.of(members), scale.of(active))
    for name in ("changes", "lists"):
        yield _memory(name)
    yield from _waits(scale)


def _label(name: str) -> str:
    return "the three caches" if name == "changes" else "lists of users"


def _check(name: str, rooms: int, changes: int, *, is_new: bool) -> Row:
    """A check of one user, after changes elsewhere."""
    mine = frozenset(f"!mine{number}:{SERVER_NAME}" for number in range(rooms))
    world = _World(name, lambda user: mine)
    since = world.applied.current()
    world.move()
    world.ask(_USER, since)  # from the first question on, there is a list
    since = world.applied.current()
    for number in range(changes):
        world.change(f"!other{number}:{SERVER_NAME}")
    if is_new:
        world.change(f"!mine0:{SERVER_NAME}")
    world.move()
    times = []
    for _ in range(_TIMES):
        begun = process_time()
        for _ in range(1_000):
            found = world.ask(_USER, since)
        times.append((process_time() - begun) * 1e3)
    expected = frozenset([f"!mine0:{SERVER_NAME}"] if is_new else [])
    if found.rooms != expected:
        raise AssertionError(found)
    bound: Bound | None = None
    if name == "changes" and changes < 2 and rooms == max(_ROOMS):
        bound = at_most(20)
    news = "something new" if is_new else "nothing new"
    return Row(
        f"check of a user in {rooms:,} rooms, {news}, {changes} changes elsewhere: {_label(name)}",
        median(times),
        "µs",
        bound,
        (min(times), max(times)),
    )


def _change(name: str, members: int, active: int) -> Row:
    """A change of a room, with users who have asked lately."""
    room = frozenset(["!busy"])
    world = _World(name, lambda user: room)
    for number in range(active):
        since = world.applied.current()
        world.move()
        world.ask(f"@user{number}:{SERVER_NAME}", since)
    times = []
    for _ in range(_TIMES):
        begun = process_time()
        for _ in range(20):
            world.change("!busy")
        times.append((process_time() - begun) * 1e6 / 20)
    return Row(
        f"an event in a room of {members:,}, of whom {active:,} have asked: {_label(name)}",
        median(times),
        "µs",
        None,
        (min(times), max(times)),
    )


def _memory(name: str) -> Row:
    """What is kept for users who ask, besides the sets of their rooms."""
    ids = [f"!room{number}:{SERVER_NAME}" for number in range(_ROOMS_EACH * 20)]
    rooms = {
        f"@user{number}:{SERVER_NAME}": frozenset(
            ids[(number * 7 + place) % len(ids)] for place in range(_ROOMS_EACH)
        )
        for number in range(_USERS)
    }
    world = _World(name, lambda user: rooms[user])
    gc.collect()
    tracemalloc.start()
    for user in rooms:
        since = world.applied.current()
        world.move()
        world.ask(user, since)
    for number in range(_CHANGED):
        world.change(ids[number])
    world.move()
    gc.collect()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return Row(
        f"{_USERS:,} users in {_ROOMS_EACH} rooms each, {_CHANGED} of {len(ids):,} rooms changed: {_label(name)}",
        used / _USERS / 1024,
        "KiB a user",
    )


def _waits(scale: Scale) -> Iterator[Row]:
    """Syncs that wait, without HTTP and without what they answer."""
    count, woken = scale.of(_WAITING), scale.of(_WOKEN)
    rooms = {
        f"@{n}:{SERVER_NAME}": frozenset(
            [f"!own{n}-{room}" for room in range(20)] + (["!busy"] if n < woken else [])
        )
        for n in range(count)
    }

    async def load(user_id: str) -> frozenset[str]:
        return rooms[user_id]

    loop: Any = reactor
    scheduler = TwistedScheduler(loop)
    applied = AppliedVectors(scheduler, SERVER_NAME)
    waits = WaitingSyncs(scheduler, applied, load)
    upto = applied.current()
    gc.collect()
    tracemalloc.start()
    waiting = [Deferred.fromCoroutine(waits.wait(user, upto, 30.0)) for user in rooms]
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    yield Row(
        f"{count:,} waiting syncs of users in 20 rooms: memory without HTTP",
        used / count / 1024,
        "KiB each",
        at_most(20),
    )
    begun = process_time()
    waits.changed(ChangeKind.ROOM, "master", 1, "!busy")
    while not all(each.called for each in waiting[:woken]):
        loop.iterate(0)
    spent = (process_time() - begun) * 1e3
    if len(waits) != count - woken:
        raise AssertionError("others were woken, too")
    for each in waiting[woken:]:
        each.addErrback(lambda failure: failure.trap(CancelledError) and None)
        each.cancel()
    yield Row(f"an event wakes {woken:,} of them, without answers", spent, "ms of CPU")
