"""What clients are told: first syncs of many rooms, what is new in one, pages of history, and checks that say no.

The rooms are posted to a master; then the work of the services is done on a connection of its own, without HTTP.
"""

from __future__ import annotations

import gc
import json
import tracemalloc
import urllib.request
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any, TypeVar

from signedjson.key import generate_signing_key
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred

from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_most
from benchmarks.running_master import SERVER_NAME, RunningMaster
from simulator.rooms.watched_transaction import WatchedTransaction
from synrepl.adapters.caches import make_caches
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.clock import Clock
from synrepl.driver.blocking import BlockingDatabase
from synrepl.positions.vector import PositionVector
from synrepl.rooms import EventBuilder, EventDraft, Room, room_version
from synrepl.services.rooms.client_data.data import ClientData, DataRooms
from synrepl.services.rooms.client_data.data_reader import ClientDataReader
from synrepl.services.rooms.client_data.typing_users import TypingRooms
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.changes_check import ChangesCheck
from synrepl.services.rooms.news.news import ANY_NEWS, NO_NEWS, News
from synrepl.services.rooms.news.recent_changes import ChangeKind, RecentChanges
from synrepl.services.rooms.news.rooms_of_users import RoomsOfUsers
from synrepl.services.rooms.news.sync_token import SyncToken, server_tag
from synrepl.services.rooms.news.waiting_syncs import WaitingSyncs
from synrepl.services.rooms.timelines.client_filter import (
    ClientFilter,
    RoomEventFilter,
    RoomFilter,
)
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.services.rooms.timelines.updates import RoomPage, TimelineReader
from synrepl.storage.database import Transaction

T = TypeVar("T")

_ROOMS, _LARGE = 2_000, 20_000
_MESSAGES = 20
_PAGE = 50
_USER = f"@reader:{SERVER_NAME}"
_OWNER = f"@owner:{SERVER_NAME}"
_TIMES = 15

#: Syncs that wait, and those of them that one event wakes.
_WAITING, _WOKEN = 10_000, 1_000

#: Events in one request.
_POSTED = 10_000


class _Counted:
    """A database for services, on one connection, that counts statements."""

    def __init__(self, database: BlockingDatabase) -> None:
        self._database = database
        self.statements = 0

    async def run(self, name: str, work: Callable[[Transaction], T], **options: object) -> T:
        def counted(txn: Transaction) -> T:
            return work(WatchedTransaction(txn, self._count))  # type: ignore[arg-type]

        return self._database.run(name, counted)

    def _count(self, sql: str) -> None:
        self.statements += 1


class _Now:
    """The time does not matter."""

    def seconds(self) -> float:
        return 0.0


def run(scale: Scale) -> Iterator[Row]:
    """Time and statements."""
    rooms, large = scale.of(_ROOMS), scale.of(_LARGE)
    with TemporaryDirectory() as directory, postgres() as dsn:
        settings = {
            "catalogue": ["events", "backfill", "caches"],
            "rooms": {"writers": ["master"], "max_queued_bytes": "256MiB"},
        }
        with RunningMaster(dsn, Path(directory), settings) as master:
            ids = list(_fill(master, rooms, large))
        with BlockingDatabase(dsn, "benchmark") as database:
            database.run("analyze", lambda txn: txn.execute("ANALYZE") and None)
            last = database.run(
                "last",
                lambda txn: txn.execute("SELECT max(stream_id) FROM synrepl.events").fetchone()[0],
            )
            upto = PositionVector(linear=int(last))
            yield from _timelines(database, ids, upto, rooms)
            yield from _data(database, ids, upto, rooms)
    yield from _checks()
    yield from _waits(scale)


def _fill(master: RunningMaster, rooms: int, large: int) -> Iterator[str]:
    """Rooms with the reader in them, the last one large; their IDs."""
    version = room_version("10")
    builder = EventBuilder(version, SERVER_NAME, generate_signing_key("1"))
    waiting: list[bytes] = []
    clock = 1_700_000_000_000
    for number in range(rooms + 1):
        room = Room(version)
        room_id = f"!{number}:{SERVER_NAME}"
        count = large if number == rooms else _MESSAGES + 2
        for place in range(count + 5):
            clock += 1
            draft = _draft(place, clock)
            event = builder.create(draft, room_id) if place == 0 else builder.build(draft, room)
            room.receive(event)
            waiting.append(event.raw)
        yield room_id
        if len(waiting) > _POSTED - 100 or number >= rooms - 1:
            for start in range(0, len(waiting), _POSTED):
                _post(master, waiting[start : start + _POSTED])
            waiting.clear()


def _draft(place: int, clock: int) -> EventDraft:
    first = (
        EventDraft("m.room.create", _OWNER, {"creator": _OWNER, "room_version": "10"}, clock, ""),
        EventDraft("m.room.member", _OWNER, {"membership": "join"}, clock, _OWNER),
        EventDraft("m.room.power_levels", _OWNER, {"users": {_OWNER: 100}}, clock, ""),
        EventDraft("m.room.join_rules", _OWNER, {"join_rule": "public"}, clock, ""),
        EventDraft("m.room.member", _USER, {"membership": "join"}, clock, _USER),
    )
    if place < len(first):
        return first[place]
    content = {"msgtype": "m.text", "body": f"message {place} " + "x" * 80}
    return EventDraft("m.room.message", _OWNER, content, clock)


def _post(master: RunningMaster, events: list[bytes]) -> None:
    request = urllib.request.Request(
        f"{master.http}/rooms/events?version=10",
        b"\n".join(events),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        outcomes = {each["outcome"] for each in json.load(answer)["events"]}
    if outcomes != {"accepted"}:
        raise AssertionError(outcomes)


def _timelines(
    database: BlockingDatabase, ids: list[str], upto: PositionVector, rooms: int
) -> Iterator[Row]:
    counted = _Counted(database)
    clock: Any = _Now()
    assert isinstance(clock, _Now | Clock)
    timelines = Timelines(counted, clock)  # type: ignore[arg-type]
    reader = TimelineReader(_USER)
    wanted = ClientFilter(
        room=RoomFilter(
            timeline=RoomEventFilter(limit=_MESSAGES),
            state=RoomEventFilter(lazy_load_members=True),
        )
    )

    def first(place: int) -> int:
        page = RoomPage(place, _PAGE)
        return len(_done(timelines.initial(reader, upto, wanted, page)).joined)

    if first(0) != min(_PAGE, rooms + 1):
        raise AssertionError("a page of rooms is not full")
    yield from _measured(
        counted, f"first page of {_PAGE} rooms of {rooms:,}", lambda: first(0), 150, 10
    )
    begun = perf_counter()
    seen = sum(first(place) for place in range(0, rooms + 1, _PAGE))
    yield Row(
        "all of them, page by page", perf_counter() - begun, "s", at_most(4), detail=f"{seen} rooms"
    )
    since = PositionVector(linear=upto.linear - 3)

    def new() -> int:
        found = _done(timelines.since(reader, since, upto, {ids[-1]}, wanted))
        return len(found.joined[ids[-1]].timeline.events)

    if new() != 3:
        raise AssertionError("three events are new")
    yield from _measured(counted, "one room with news", new, 3, 2)

    def page() -> int:
        return len(_done(timelines.messages(reader, ids[-1], upto, None, limit=_PAGE)).events)

    if page() != _PAGE:
        raise AssertionError("a page of messages is not full")
    yield from _measured(counted, f"/messages of {_PAGE} of {_LARGE:,}", page, 10, None)


def _data(
    database: BlockingDatabase, ids: list[str], upto: PositionVector, rooms: int
) -> Iterator[Row]:
    """What is told besides the events of rooms: receipts of ten users in each room, two entries of account data."""
    database.run("fill", lambda txn: txn.execute(_FILL, {"reader": _USER}) and None)
    database.run("analyze", lambda txn: txn.execute("ANALYZE") and None)
    counted = _Counted(database)
    last = PositionVector(linear=1 << 40)
    position = SyncToken(server_tag(SERVER_NAME), upto, last, last, last, last, last)
    timelines, reader = Timelines(counted, _Now()), TimelineReader(_USER, "DEVICE")  # type: ignore[arg-type]
    wanted = ClientFilter(
        room=RoomFilter(
            timeline=RoomEventFilter(limit=_MESSAGES),
            state=RoomEventFilter(lazy_load_members=True),
        )
    )
    data = ClientDataReader(TypingRooms())

    def read(since: SyncToken | None, news: News, told: DataRooms) -> ClientData:
        return _done(
            counted.run(
                "client data", lambda txn: data.read(txn, reader, since, position, news, told)
            )
        )

    def first(count: int) -> ClientData:
        update = _done(timelines.initial(reader, upto, wanted, RoomPage(0, count)))
        return read(None, ANY_NEWS, DataRooms(update.joined, update.joined))

    page = first(_PAGE)
    if {(len(r.account_data), len(r.receipts)) for r in page.rooms.values()} != {(2, 10)}:
        raise AssertionError("account data or receipts are missing")
    yield from _measured(
        counted,
        f"first page of {_PAGE} rooms of {rooms:,}, with data",
        lambda: first(_PAGE),
        180,
        10,
    )
    mine = frozenset(ids)
    whole = DataRooms(mine, mine)
    yield from _measured(
        counted,
        f"data alone, of all {rooms:,} rooms",
        lambda: read(None, ANY_NEWS, whole),
        2_000,
        1,
    )
    since = position.replace({"receipts": PositionVector(linear=(rooms + 1) * 10 - 1)})
    news = News(receipts=frozenset(ids[-2:]))

    def receipt() -> None:
        found = read(since, news, DataRooms(mine))
        if sum(len(room.receipts) for room in found.rooms.values()) != 1:
            raise AssertionError("one receipt is new")

    yield from _measured(counted, "one receipt, of a user in all rooms", receipt, 3, 1)


_FILL = """
    INSERT INTO synrepl._receipts (stream_id, ts, room_no, user_id, receipt_type, thread_id, event_id, writer)
    SELECT row_number() OVER (ORDER BY r.room_no, n), 1, r.room_no, '@u' || n || ':x', 'm.read', '', '$e', 'master'
      FROM synrepl._rooms r, generate_series(1, 10) AS n;
    INSERT INTO synrepl._account_data (stream_id, user_id, room_id, type, content, writer)
    SELECT row_number() OVER (), %(reader)s, r.room_id, t, '{"event_id":"$e"}', 'master'
      FROM synrepl._rooms r, unnest(ARRAY['m.fully_read', 'm.tag']) AS t;
    INSERT INTO synrepl._presence (stream_id, last_active_ts, currently_active, user_id, state, writer)
    SELECT n, 1, true, '@p' || n || ':x', 'online', 'master' FROM generate_series(1, 5000) AS n"""


def _measured(
    counted: _Counted, name: str, work: Callable[[], object], most_ms: float, most: int | None
) -> Iterator[Row]:
    times = []
    for _ in range(_TIMES):
        counted.statements = 0
        begun = perf_counter()
        work()
        times.append((perf_counter() - begun) * 1e3)
    yield Row(f"{name}: time", median(times), "ms", at_most(most_ms), (min(times), max(times)))
    bound = None if most is None else at_most(most)
    yield Row(f"{name}: statements", counted.statements, "statements", bound)


def _checks() -> Iterator[Row]:
    """Whether anything is new for a user in 5,000 rooms."""
    mine = frozenset(f"!{number}:{SERVER_NAME}" for number in range(5_000))

    async def load(users: Collection[str]) -> Mapping[str, frozenset[str]]:
        return dict.fromkeys(users, mine)

    recent = RecentChanges()
    check = ChangesCheck(recent, RoomsOfUsers(make_caches(), load))
    recent.begin("events", "master", 0)
    tag = server_tag(SERVER_NAME)
    token = 0
    for changes in (0, 1, 200):
        since = SyncToken(tag, PositionVector(linear=token))
        for _ in range(changes):
            token += 1
            recent.changed(ChangeKind.ROOM, "master", token, f"!other{token}:{SERVER_NAME}")
        token += 1  # a fact that says nothing about rooms
        upto = SyncToken(tag, PositionVector(linear=token))
        times = []
        for _ in range(_TIMES):
            begun = process_time()
            for _ in range(1_000):
                if _done(check.news_for(_USER, since, upto)) != NO_NEWS:
                    raise AssertionError("nothing is new")
            times.append((process_time() - begun) * 1e3)
        yield Row(
            f"check of a user in 5,000 rooms, {changes} changes elsewhere",
            median(times),
            "µs",
            at_most(20) if changes < 2 else None,
            (min(times), max(times)),
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
        f"{count:,} waiting syncs of users in 20 rooms: memory",
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
    yield Row(f"an event wakes {woken:,} of them", spent, "ms of CPU", at_most(200))


def _done(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("it waits")
