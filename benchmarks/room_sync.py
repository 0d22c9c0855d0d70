"""What clients are told: first syncs of many rooms, what is new in one, pages of history, and memory meanwhile.

The rooms are posted to a master; then the work of the services is done on a connection of its own, without HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from twisted.internet import reactor

from benchmarks.child import Child
from benchmarks.client_api import ApiClient, ClientApiSite
from benchmarks.coroutines import result_of
from benchmarks.counting_database import CountingDatabase
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_most
from benchmarks.posted_rooms import PostedRooms
from benchmarks.running_master import SERVER_NAME, RunningMaster, free_ports
from benchmarks.server_cpu import ServerProcesses
from benchmarks.sliding_sync import sliding_rows
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.jsons import encode
from synrepl.driver.blocking import BlockingDatabase
from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.client_data.data import ClientData, DataRooms
from synrepl.services.rooms.client_data.data_reader import ClientDataReader
from synrepl.services.rooms.client_data.typing_users import TypingRooms
from synrepl.services.rooms.news.news import ANY_NEWS, News
from synrepl.services.rooms.news.sync_token import SyncToken, server_tag
from synrepl.services.rooms.timelines.client_filter import (
    ClientFilter,
    RoomEventFilter,
    RoomFilter,
)
from synrepl.services.rooms.timelines.room_tails import RoomTails
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.services.rooms.timelines.updates import RoomPage, TimelineReader

ROOMS, _LARGE = 2_000, 20_000
MESSAGES = 20
PAGE = 50
USER = f"@reader:{SERVER_NAME}"

#: Measurements, and runs in each.
_TIMES, _AT_ONCE = 9, 5

#: What clients ask: members loaded lazily.
LAZY = ClientFilter(
    room=RoomFilter(
        timeline=RoomEventFilter(limit=MESSAGES), state=RoomEventFilter(lazy_load_members=True)
    )
)


class _News(NamedTuple):
    """The last events of the large room.

    :ivar count: their number
    """

    name: str
    count: int


_NEWS = (
    _News("one room with three messages", 3),
    _News("one room with a change of the topic and five messages", 6),
)


def run(scale: Scale) -> Iterator[Row]:
    """Time and statements."""
    rooms, large = scale.of(ROOMS), scale.of(_LARGE)
    with TemporaryDirectory() as directory, postgres() as dsn:
        settings = {
            "catalogue": ["events", "backfill", "caches"],
            "rooms": {"writers": ["master"], "max_queued_bytes": "256MiB"},
        }
        with RunningMaster(dsn, Path(directory), settings) as master:
            posted = PostedRooms(master)
            ids = [posted.add(f"room{number}", [USER], MESSAGES + 2) for number in range(rooms)]
            large_id = posted.add("large", [USER], large, [large - 6])
            posted.post()
        with BlockingDatabase(dsn, "benchmark") as database:
            database.run("analyze", lambda txn: txn.execute("ANALYZE") and None)
            upto = everything(database)
            server = ServerProcesses(dsn)
            yield from _timelines(server, database, large_id, upto, rooms)
            yield from _data(server, database, [*ids, large_id], upto)
            yield from sliding_rows(dsn, database, SERVER_NAME, USER, rooms, upto.linear, large_id)
        yield from _memory(dsn, rooms)
        yield from _over_http(dsn, Path(directory), rooms)


def everything(database: BlockingDatabase) -> PositionVector:
    """The vector of all facts."""
    last = "SELECT max(stream_id) FROM synrepl.events"
    return PositionVector(
        linear=int(database.run("last", lambda txn: txn.execute(last).fetchone()[0]))
    )


def _timelines(
    server: ServerProcesses,
    database: BlockingDatabase,
    large_id: str,
    upto: PositionVector,
    rooms: int,
) -> Iterator[Row]:
    counted = CountingDatabase(database)
    scheduler = TwistedScheduler(cast(Any, reactor))
    timelines = Timelines(counted, scheduler, RoomTails(scheduler, counted))
    reader = TimelineReader(USER)
    measure = _Measure(counted, server)

    def first(place: int) -> int:
        page = RoomPage(place, PAGE)
        return len(result_of(timelines.initial(reader, upto, LAZY, page)).joined)

    if first(0) != min(PAGE, rooms + 1):
        raise AssertionError("a page of rooms is not full")
    yield from measure.rows(f"first page of {PAGE} rooms of {rooms:,}", lambda: first(0), 150, 10)
    places = range(0, rooms + 1, PAGE)
    spent = server.with_ours(lambda: [first(place) for place in places], 1)
    yield Row("all of them, page by page", spent, "s of CPU", at_most(4))
    for name, count in _NEWS:
        since = PositionVector(linear=upto.linear - count)

        def new(since: PositionVector = since) -> int:
            timelines.tails.unknown_upto("events", "master", 0)  # nobody has read it before
            found = result_of(
                timelines.since(reader, since, upto, {large_id}, LAZY, memberships_changed=False)
            )
            return len(found.joined[large_id].timeline.events)

        if new() != count:
            raise AssertionError(f"{count} events are new")
        yield from measure.rows(name, new, 3, 2)

    def page() -> int:
        return len(result_of(timelines.messages(reader, large_id, upto, None, limit=PAGE)).events)

    if page() != PAGE:
        raise AssertionError("a page of messages is not full")
    yield from measure.rows(f"/messages of {PAGE} of a large room", page, 10, None)


def _data(
    server: ServerProcesses,
    database: BlockingDatabase,
    ids: Sequence[str],
    upto: PositionVector,
) -> Iterator[Row]:
    """What is told besides the events of rooms: receipts of ten users in each room, two entries of account data."""
    database.run("fill", lambda txn: txn.execute(_FILL, {"reader": USER}) and None)
    database.run("analyze", lambda txn: txn.execute("ANALYZE") and None)
    counted = CountingDatabase(database)
    measure = _Measure(counted, server)
    last = PositionVector(linear=1 << 40)
    position = SyncToken(server_tag(SERVER_NAME), upto, last, last, last, last, last)
    scheduler = TwistedScheduler(cast(Any, reactor))
    timelines = Timelines(counted, scheduler, RoomTails(scheduler, counted))
    reader = TimelineReader(USER, "DEVICE")
    data = ClientDataReader(TypingRooms())

    def read(since: SyncToken | None, news: News, told: DataRooms) -> ClientData:
        return result_of(
            counted.run(
                "client data", lambda txn: data.read(txn, reader, since, position, news, told)
            )
        )

    def first() -> ClientData:
        update = result_of(timelines.initial(reader, upto, LAZY, RoomPage(0, PAGE)))
        return read(None, ANY_NEWS, DataRooms(update.joined, update.joined))

    page = first()
    if {(len(r.account_data), len(r.receipts)) for r in page.rooms.values()} != {(2, 10)}:
        raise AssertionError("account data or receipts are missing")
    yield from measure.rows(f"first page of {PAGE} rooms, with data", first, 180, 10)
    whole = DataRooms(ids, ids)
    yield from measure.rows(
        f"data alone, of all {len(ids):,} rooms", lambda: read(None, ANY_NEWS, whole), 2_000, 1
    )
    since = position.replace({"receipts": PositionVector(linear=len(ids) * 10 - 1)})
    news, joined = News(receipts=frozenset(ids[-2:])), frozenset(ids)

    def receipt() -> None:
        found = read(since, news, DataRooms(joined))
        if sum(len(room.receipts) for room in found.rooms.values()) != 1:
            raise AssertionError("one receipt is new")

    yield from measure.rows("one receipt, of a user in all rooms", receipt, 3, 1)


_FILL = """
    INSERT INTO synrepl._receipts (stream_id, ts, room_no, user_id, receipt_type, thread_id, event_id, writer)
    SELECT row_number() OVER (ORDER BY r.room_no, n), 1, r.room_no, '@u' || n || ':x', 'm.read', '', '$e', 'master'
      FROM synrepl._rooms r, generate_series(1, 10) AS n;
    INSERT INTO synrepl._account_data (stream_id, user_id, room_id, type, content, writer)
    SELECT row_number() OVER (), %(reader)s, r.room_id, t, '{"event_id":"$e"}', 'master'
      FROM synrepl._rooms r, unnest(ARRAY['m.fully_read', 'm.tag']) AS t;
    INSERT INTO synrepl._presence (stream_id, last_active_ts, currently_active, user_id, state, writer)
    SELECT n, 1, true, '@p' || n || ':x', 'online', 'master' FROM generate_series(1, 5000) AS n"""


class _Measure(NamedTuple):
    """What some work takes.

    :ivar counted: has to be used by the work
    """

    counted: CountingDatabase
    server: ServerProcesses

    def rows(
        self, name: str, work: Callable[[], object], most_ms: float, most: int | None
    ) -> Iterator[Row]:
        """CPU time, and statements."""
        found, begun = [], perf_counter()
        for _ in range(_TIMES):
            self.counted.statements = 0
            found.append(self.server.with_ours(work, _AT_ONCE) * 1e3)
        wall = (perf_counter() - begun) / (_TIMES * _AT_ONCE) * 1e3
        yield Row(
            f"{name}: time",
            median(found),
            "ms of CPU",
            at_most(most_ms),
            (min(found), max(found)),
            f"with the database's; {wall:.1f} ms from beginning to end",
        )
        bound = None if most is None else at_most(most)
        yield Row(f"{name}: statements", self.counted.statements / _AT_ONCE, "statements", bound)


def _memory(dsn: str, rooms: int) -> Iterator[Row]:
    with Child("room_sync_process", dsn) as process:
        pages = process.receive()
    yield Row(
        f"first sync of {rooms:,} rooms, page by page: memory of all pages",
        pages["all"] / pages["first"],
        "× the first page",
        at_most(1.2),
        detail=f"{pages['all'] / 2**20:.0f} MiB of the process",
    )


def _over_http(dsn: str, directory: Path, rooms: int) -> Iterator[Row]:
    """The first sync in one answer, which is what clients without sliding sync ask for."""
    (port,) = free_ports(1)
    site = ClientApiSite(directory, [USER])
    settings = {
        "catalogue": ["events", "backfill", "caches"],
        "rooms": site.settings(["master"], port),
    }
    wanted = {"room": {"timeline": {"limit": MESSAGES}, "state": {"lazy_load_members": True}}}
    with RunningMaster(dsn, directory, settings) as master:
        client = ApiClient(port, site.token(USER))
        client.ask("GET", f"/rooms/{quote(f'!room0:{SERVER_NAME}')}/messages?dir=b")
        server = ServerProcesses(dsn)
        before, spent = master.memory(), master.cpu() + server.cpu()
        answer = client.ask("GET", f"/sync?filter={quote(json.dumps(wanted))}")
        spent = master.cpu() + server.cpu() - spent
        used = master.peak() - before
        if len(answer["rooms"]["join"]) != rooms + 1:
            raise AssertionError("rooms are missing")
        size = len(encode(answer))
        client.close()
    yield Row(f"first sync of {rooms:,} rooms in one answer: time", spent, "s of CPU", at_most(4))
    yield Row(
        f"first sync of {rooms:,} rooms in one answer: memory",
        used / size,
        "× the answer",
        at_most(5),
        detail=f"{used / 2**20:.0f} MiB for {size / 2**20:.0f} MiB of JSON",
    )
