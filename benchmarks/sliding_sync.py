"""Answers of sliding sync to a user in many rooms: the first window, all rooms, one room with news, and none.

The work of the services is done on a connection of its own, without HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from statistics import median
from time import process_time
from typing import Any, NamedTuple

from twisted.internet import reactor

from benchmarks.coroutines import result_of
from benchmarks.counting_database import CountingDatabase
from benchmarks.harness import Row, at_most
from benchmarks.server_cpu import ServerProcesses
from synrepl.adapters.caches import make_caches
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import Token
from synrepl.driver.blocking import BlockingDatabase
from synrepl.services.clients.identity import ClientIdentity
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
from synrepl.services.rooms.news.recent_changes import ChangeKind, RecentChanges
from synrepl.services.rooms.news.rooms_of_users import RoomsOfUsers
from synrepl.services.rooms.news.token_wait import TokenWait
from synrepl.services.rooms.news.waiting_syncs import WaitingSyncs
from synrepl.services.rooms.sliding.connection_state import ConnectionState
from synrepl.services.rooms.sliding.connections import SlidingConnections
from synrepl.services.rooms.sliding.required_state import RequiredState
from synrepl.services.rooms.sliding.room_labels import no_labels
from synrepl.services.rooms.sliding.room_lists import RoomListCache
from synrepl.services.rooms.sliding.sliding_pos import SlidingPos
from synrepl.services.rooms.sliding.sliding_request import (
    ListFilter,
    RoomRule,
    RoomWindows,
    SlidingRequest,
)
from synrepl.services.rooms.sliding.sliding_sync import SlidingAnswer, SlidingSync
from synrepl.services.rooms.sync.user_data import UserData
from synrepl.services.sources import LINEAR
from synrepl.storage.clients.sliding_positions import ConnectionName
from synrepl.storage.rooms.reading.rooms_of_user import RoomsOfUser, rooms_of_users
from synrepl.streams.definition import Stream

_TIMES = 15
_IDLE_TIMES = 1_000

#: The first window, and its timelines; timelines of the other rooms.
_WINDOW, _EVENTS, _OTHER_EVENTS = 20, 20, 1

_WRITER = "master"

#: What clients of today ask of the states of rooms in a list.
_REQUIRED = RequiredState.of_pairs(
    [
        *(
            (f"m.room.{name}", "")
            for name in ("name", "encryption", "topic", "avatar", "canonical_alias", "power_levels")
        ),
        *((f"m.room.{name}", "") for name in ("create", "join_rules", "tombstone")),
        ("m.room.member", "$LAZY"),
        ("m.room.member", "$ME"),
    ],
    "@me",
)

_NO_SPACES = ListFilter(not_room_types=frozenset({"m.space"}))


class _Nothing:
    """A log that nobody reads."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **facts: None


class _AllGivenOut:
    """Every token was given out."""

    async def was_given_out(self, stream: Stream, token: Token) -> bool:
        return True


class _Process(NamedTuple):
    """A process that answers a user.

    :ivar database: counts the statements
    :ivar lists: the lists of rooms that it knows
    """

    database: CountingDatabase
    applied: AppliedVectors
    recent: RecentChanges
    connections: SlidingConnections
    lists: RoomListCache
    rooms: RoomsOfUsers
    sliding: SlidingSync
    identity: ClientIdentity

    def ask(
        self, last: int | None, events: int, pos: str | None = None, wanted: ListFilter = _NO_SPACES
    ) -> SlidingAnswer:
        """Ask for the first rooms; None: for all."""
        ranges = None if last is None else ((0, last),)
        lists: Mapping[str, RoomWindows] = {
            "all_rooms": RoomWindows(RoomRule(events, _REQUIRED), ranges, wanted)
        }
        return result_of(self.sliding.sync(self.identity, SlidingRequest("bench", pos, 0.0, lists)))

    def moved(self, token: int) -> None:
        """The streams move on."""
        self.applied.moved("events", _WRITER, token)
        self.applied.moved("events", LINEAR, token)


def sliding_rows(
    dsn: str,
    database: BlockingDatabase,
    server: str,
    user: str,
    rooms: int,
    last: int,
    changed: str,
) -> Iterator[Row]:
    """Time and statements.

    :param dsn: of the database
    :param rooms: that the user is in
    :param last: the last token of ``events``
    :param changed: the room of which the last three events are
    """
    cpu = ServerProcesses(dsn)
    process = _process(database, server, user)
    process.moved(last - 3)

    def first(by: _Process = process) -> SlidingAnswer:
        return by.ask(_WINDOW - 1, _EVENTS)

    def cold() -> None:
        other = _process(database, server, user)
        other.moved(last - 3)
        first(other)
        statements.append(other.database.statements)

    statements: list[int] = []
    if len(first().rooms) != _WINDOW:
        raise AssertionError("the first window is not full")
    for name, work, most_ms in (
        (f"first window of {_WINDOW} rooms of {rooms:,}", cold, 150),
        ("the same at a process that knows the user", first, 75),
    ):
        times = [cpu.with_ours(work, 1) * 1e3 for _ in range(_TIMES)]
        spread = (min(times), max(times))
        yield Row(f"{name}: time", median(times), "ms of CPU", at_most(most_ms), spread)
    name = f"first window of {_WINDOW} rooms of {rooms:,}: statements"
    yield Row(name, max(statements), "statements", at_most(12))
    pos = first().pos
    grown = process.ask(99, _EVENTS, pos)
    if len(grown.rooms) != 100 - _WINDOW:
        raise AssertionError("the window is not full")
    told, pos = 0, first().pos
    before = process_time() + cpu.cpu()
    while (answer := process.ask(None, _OTHER_EVENTS, pos)).rooms:
        told, pos = told + len(answer.rooms), answer.pos
    yield Row(
        f"all {rooms:,} rooms, with the newest event of each",
        process_time() + cpu.cpu() - before,
        "s of CPU",
        at_most(4),
        detail=f"{told} rooms after the first window",
    )
    state = result_of(process.connections.find(*_names(process, pos, server))).packed
    yield Row(
        "what a connection remembers of a room",
        len(state) / len(ConnectionState.unpacked(state, 1).rooms),
        "bytes",
        at_most(10),
    )
    yield from _idle(process, pos)
    yield from _news(cpu, process, database, server, user, last, changed, first().pos)


def _idle(process: _Process, pos: str) -> Iterator[Row]:
    """Nothing is new."""
    process.database.statements = 0
    times = []
    for _ in range(_TIMES):
        begun = process_time()
        for _ in range(_IDLE_TIMES):
            if process.ask(None, _OTHER_EVENTS, pos).rooms:
                raise AssertionError("nothing is new")
        times.append((process_time() - begun) * 1e6 / _IDLE_TIMES)
    yield Row(
        "request when nothing is new: time",
        median(times),
        "µs of CPU",
        at_most(500),
        (min(times), max(times)),
    )
    yield Row(
        "request when nothing is new: statements",
        process.database.statements,
        "statements",
        at_most(0),
    )


def _news(
    cpu: ServerProcesses,
    process: _Process,
    database: BlockingDatabase,
    server: str,
    user: str,
    last: int,
    changed: str,
    pos: str,
) -> Iterator[Row]:
    """Three messages in one room, which every process has to learn of."""
    listed = process.lists.find(user)
    assert listed is not None
    others = []
    for _ in range(_TIMES + 2):
        other = _process(database, server, user)
        other.moved(last - 3)
        other.lists.keep(user, listed)
        other.ask(_WINDOW - 1, _EVENTS, pos)
        result_of(other.rooms.rooms_of(user))
        for token in range(last - 2, last + 1):
            other.recent.changed(ChangeKind.ROOM, _WRITER, token, changed)
        other.moved(last)
        others.append(other)
    ready = iter(others)

    def news() -> SlidingAnswer:
        process = next(ready)
        answer = process.ask(_WINDOW - 1, _EVENTS, pos)
        process_statements.append(process.database.statements)
        return answer

    process_statements: list[int] = []
    for each in others:
        each.database.statements = 0
    answer = news()
    if len(answer.rooms[changed].timeline) != 3 or len(answer.rooms) != 1:
        raise AssertionError("three events are new")
    name = f"one room with news of {len(listed.rooms):,}"
    spent = cpu.with_ours(news, _TIMES) * 1e3
    yield Row(f"{name}: time", spent, "ms of CPU", at_most(8))
    yield Row(f"{name}: statements", max(process_statements), "statements", at_most(5))


def _names(process: _Process, pos: str, server: str) -> tuple[Any, Any]:
    return ConnectionName(*process.identity, "bench"), SlidingPos.parse(pos, server).key


def _process(database: BlockingDatabase, server: str, user: str) -> _Process:
    counted: Any = CountingDatabase(database)
    loop: Any = reactor
    scheduler = TwistedScheduler(loop)
    log: Any = _Nothing()
    applied = AppliedVectors(scheduler, server)

    async def load(users: Collection[str]) -> Mapping[str, RoomsOfUser]:
        known = applied.current().events
        return await counted.run("rooms", lambda txn: rooms_of_users(txn, users, known))

    rooms = RoomsOfUsers(make_caches(), load)
    recent = RecentChanges()
    recent.begin("events", _WRITER, 0)
    check = ChangesCheck(recent, rooms)
    waits = WaitingSyncs(scheduler, applied, rooms.rooms_of)
    writers = DataWriters("bench", None, {}, NoOtherWriters(), WriterActions(()))
    data = UserData(
        counted,
        ClientDataReader(TypingRooms()),
        rooms.rooms_of,
        nobody,
        PresenceTracker(scheduler, PresenceService(scheduler, counted, writers, log), log),
        DeviceRegistry(scheduler, counted, log),
    )
    connections = SlidingConnections(counted, scheduler, log)
    lists = RoomListCache()
    sliding = SlidingSync(
        server,
        scheduler,
        data,
        connections,
        lists,
        applied,
        TokenWait(scheduler, applied, _AllGivenOut()),
        check,
        waits,
        no_labels,
        log,
    )
    identity = ClientIdentity(user, "BENCH")
    return _Process(counted, applied, recent, connections, lists, rooms, sliding, identity)
