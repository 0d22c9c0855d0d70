"""Pages of a room of which 99 % is hidden from the user, and the seed's table of users and events.

The seed of the room store proposes a table of which user may see which event, so that a page is one range
of one index. It is built here for some users, as the yardstick: for time, and for bytes, which are taken for
all users of the room. Against it stand the packed audiences, and what a page needs besides: the versions
of memberships on the state line, and the indexes of places on the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any, cast

from twisted.internet import reactor

from benchmarks import hidden_room
from benchmarks.coroutines import result_of
from benchmarks.counting_database import CountingDatabase
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_most, ratio
from benchmarks.hidden_room import NEVER, OFTEN, ONCE, ROOM_ID
from benchmarks.rows_read import RowCounter
from benchmarks.server_cpu import ServerProcesses
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.driver.blocking import BlockingDatabase
from synrepl.positions.vector import PositionVector
from synrepl.rooms import EventOrdering, Viewer
from synrepl.services.rooms.timelines.room_tails import RoomTails
from synrepl.services.rooms.timelines.room_token import RoomToken
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.services.rooms.timelines.updates import TimelineReader
from synrepl.storage.database import Transaction
from synrepl.storage.migrations import MigrationPhase, apply_next, load
from synrepl.storage.rooms.visibility.pages import PageOrder, PageRequest, visible_page

_EVENTS, _MEMBERS = 1_000_000, 10_000

#: Events on a page.
_PAGE = 50

#: Users for whom the seed's table is built.
_SEED_USERS = 50

#: Pages of one measurement.
_TIMES = 20

_READ = at_most(10)
_MILLISECONDS = at_most(10)

#: What visibility costs in bytes: whole relations that are only there for it.
_OWN_INDEXES = (
    "synrepl._room_events_line",
    "synrepl._room_events_line_order",
    "synrepl._room_events_beside",
    "synrepl._room_events_beside_stream",
    "synrepl._room_events_slot",
    "synrepl._room_events_exceptions",
)

#: Bytes of a packed audience in a row.
_AUDIENCE_BYTES = 4


def run(scale: Scale) -> Iterator[Row]:
    """Rows and time of pages; then bytes."""
    events, members = scale.of(_EVENTS), scale.of(_MEMBERS)
    with postgres() as dsn, BlockingDatabase(dsn, "benchmark") as database:
        while database.run("migrate", lambda txn: apply_next(txn, load(), MigrationPhase.POST)):
            pass
        database.run("fill", lambda txn: hidden_room.fill(txn, events, members))
        database.run("seed", lambda txn: hidden_room.fill_seed_table(txn, _SEED_USERS))
        for name in ("_room_events", "_state_line", "_room_keys", "_state_group_lines"):
            _vacuum(database, f"synrepl.{name}")
        _vacuum(database, "seen_events")
        middle = EventOrdering(events // 4, events // 4)
        for name, user, request in (
            ("one stay, from the end", ONCE, PageRequest(_PAGE)),
            ("one stay, from the beginning", ONCE, PageRequest(_PAGE, backwards=False)),
            ("many short stays, from the end", OFTEN, PageRequest(_PAGE)),
            ("many short stays, from the middle", OFTEN, PageRequest(_PAGE, upto=middle)),
            ("many short stays, from the beginning", OFTEN, PageRequest(_PAGE, backwards=False)),
            (
                "many short stays, forwards from the middle",
                OFTEN,
                PageRequest(_PAGE, since=middle, backwards=False),
            ),
            ("many short stays, by stream", OFTEN, PageRequest(_PAGE, order=PageOrder.STREAM)),
            (
                "many short stays, by stream from the middle",
                OFTEN,
                PageRequest(_PAGE, since=middle, backwards=False, order=PageOrder.STREAM),
            ),
            ("never in the room", NEVER, PageRequest(_PAGE)),
        ):
            yield from _page(database, name, Viewer(user), request, scale)
        yield from _bytes(database, members)
        yield from _messages(database, ServerProcesses(dsn), scale)


def _page(
    database: BlockingDatabase, name: str, viewer: Viewer, request: PageRequest, scale: Scale
) -> Iterator[Row]:
    def count(txn: Transaction) -> tuple[int, int]:
        counter = RowCounter(txn, "_room_events")
        page = visible_page(counter, ROOM_ID, viewer, request)
        return counter.rows, len(page.events)

    rows, shown = database.run("count", count)
    if shown != (0 if viewer.user == NEVER else _PAGE):
        raise AssertionError(f"{shown} events on the page {name!r}")
    yield Row(
        f"50 of {name}: rows of events read",
        rows / max(shown, 1) if shown else rows / _PAGE,
        "for each row shown" if shown else "for each row requested",
        _READ,
        detail=f"{rows} rows, {shown} events",
    )
    ours = _times(database, lambda txn: visible_page(txn, ROOM_ID, viewer, request), scale)
    yield Row(
        f"50 of {name}: time",
        median(ours) * 1e3,
        "ms",
        _MILLISECONDS,
        (min(ours) * 1e3, max(ours) * 1e3),
    )
    if viewer.user == OFTEN and request == PageRequest(_PAGE):
        theirs = _times(database, lambda txn: txn.execute(_SEED_PAGE).fetchall(), scale)
        yield ratio(
            f"50 of {name}: time",
            ours,
            theirs,
            of="the seed's table",
            measured_in="ms",
            bound=None,
            scale=1e3,
        )


def _messages(database: BlockingDatabase, server: ServerProcesses, scale: Scale) -> Iterator[Row]:
    """Pages of ``/messages``, with everything that is read for them, from the end and from the middle."""
    older = EventOrdering(_events(database) // 10, _events(database) // 10)
    starts = [None, older]
    seen = database.run(
        "seen",
        lambda txn: [
            (each.event_no, each.event_id)
            for start in starts
            for each in visible_page(
                txn, ROOM_ID, Viewer(OFTEN), PageRequest(_PAGE, upto=start)
            ).events
        ],
    )
    database.run("fill", lambda txn: hidden_room.fill_for_clients(txn, seen))
    for name in ("_room_event_json", "_memberships", "_room_heads"):
        _vacuum(database, f"synrepl.{name}")
    counted = CountingDatabase(database)
    scheduler = TwistedScheduler(cast(Any, reactor))
    timelines = Timelines(counted, scheduler, RoomTails(scheduler, counted))
    upto = PositionVector(linear=_events(database) * 2)
    for start in starts:
        token = None if start is None else RoomToken(upto, start)

        def page(token: RoomToken | None = token) -> int:
            reader = TimelineReader(OFTEN)
            found = timelines.messages(reader, ROOM_ID, upto, token, limit=_PAGE)
            return len(result_of(found).events)

        if page() != _PAGE:
            raise AssertionError("a page of /messages is not full")
        counted.statements = 0
        times = [server.with_ours(page, _TIMES) * 1e3 for _ in range(scale.repetitions)]
        yield Row(
            f"/messages of {_PAGE} {'from the end' if start is None else 'further back'}: time",
            median(times),
            "ms of CPU",
            _MILLISECONDS,
            (min(times), max(times)),
            f"with the database's; {counted.statements // (_TIMES * scale.repetitions)} statements",
        )


_SEED_PAGE = f"""
    SELECT e.event_no, e.event_id, e.topological, e.stream_id, e.redacted_by
      FROM (SELECT event_no, topological, stream_id FROM seen_events
             WHERE user_no = 1 AND room_no = 1
             ORDER BY topological DESC, stream_id DESC LIMIT {_PAGE}) AS s
      JOIN synrepl._room_events e USING (event_no)
     ORDER BY s.topological DESC, s.stream_id DESC"""


def _times(
    database: BlockingDatabase, work: Callable[[Transaction], object], scale: Scale
) -> list[float]:
    """Seconds of each of several pages, the connection and its caches warm."""
    found = []
    for _ in range(scale.repetitions + 1):
        times = []
        for _ in range(_TIMES):
            began = perf_counter()
            database.run("page", work, read_only=True)
            times.append(perf_counter() - began)
        found.append(median(times))
    return found[1:]


def _vacuum(database: BlockingDatabase, table: str) -> None:
    """Statistics and the visibility map, as autovacuum makes them."""
    database.run("analyze", lambda txn: txn.execute(f"ANALYZE {table}"))


def _bytes(database: BlockingDatabase, members: int) -> Iterator[Row]:
    def sizes(txn: Transaction) -> tuple[float, float, float, float]:
        events, seen, seed = txn.execute(
            "SELECT (SELECT count(*) FROM synrepl._room_events),"
            " (SELECT count(*) FROM seen_events), pg_total_relation_size('seen_events')"
        ).fetchone()
        own = 0
        for name in _OWN_INDEXES:
            own += txn.execute("SELECT pg_relation_size(%s)", (name,)).fetchone()[0]
        line = txn.execute("SELECT pg_total_relation_size('synrepl._state_line')").fetchone()[0]
        return (
            (own + _AUDIENCE_BYTES * events) / events,
            line / events,
            seed / seen,
            seen / _SEED_USERS,
        )

    own, line, seed, seen = database.run("sizes", sizes)
    events = _events(database)
    whole_seed = seed * seen * members / events
    yield Row(
        "bytes an event, of everything that is there for visibility",
        own / whole_seed,
        "× the seed's table",
        at_most(0.1),
        detail=f"{own:.0f} B and {line:.0f} B of the state line, which is there anyway; the seed's"
        f" table {whole_seed:,.0f} B an event: {seed:.0f} B for each of {members:,} users and event seen",
    )


def _events(database: BlockingDatabase) -> int:
    return int(
        database.run(
            "count", lambda txn: txn.execute("SELECT count(*) FROM synrepl._room_events").fetchone()
        )[0]
    )
