"""What ``doctor`` finds about rooms: quick checks of each, and how large they will be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from synrepl.core.errors import SynreplError
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.findings import RoomFinding, RoomProblem
from synrepl.storage.rooms.maintenance.line_rebuild import differing_groups
from synrepl.storage.rooms.maintenance.verify_ends import verify_heads, verify_references
from synrepl.storage.rooms.maintenance.verify_groups import GroupVerifier
from synrepl.storage.rooms.maintenance.verify_lines import places_without_line
from synrepl.storage.rooms.reading.partial_states import resync_progress
from synrepl.storage.rooms.states.state_groups import read_states
from synrepl.storage.rooms.tables.heads import read_heads
from synrepl.storage.rooms.tables.numbers import NumberWithoutRow, RoomRow

#: The newest groups of a room, whose digests are computed.
EXAMINED_GROUPS = 50

#: The newest lines of a room, whose ends are compared with their groups.
EXAMINED_LINES = 5

#: Events by which the growth of a room is measured.
GROWTH_EVENTS = 1_000

_DAY_MS = 24 * 3600 * 1000


class RoomForecast(NamedTuple):
    """The size of a room now and later.

    :ivar bytes: on disk, with indexes, by the average size of a row of each table
    :ivar events_a_day: by the times that the newest events state
    :ivar bytes_in_a_year: if it goes on like that
    """

    room_id: str
    events: int
    bytes: int
    events_a_day: float
    bytes_in_a_year: int


def examine_room(txn: Transaction, room: RoomRow) -> Iterator[RoomFinding]:
    """Quick checks of a room: references, counts, extremities, lines, the current state, the newest digests."""
    yield from verify_references(txn, room)
    yield from verify_heads(txn, room)
    yield from places_without_line(txn, room, EXAMINED_GROUPS)
    yield from _differing_ends(txn, room)
    yield from _standing_still(txn, room)
    heads = read_heads(txn, room.room_no)
    if heads is not None:
        subject = f"state group {heads.current_group}"
        try:
            read_states(txn, room, [heads.current_group])
        except NumberWithoutRow as error:
            yield RoomFinding(RoomProblem.DANGLING, room.room_id, subject, str(error))
        except SynreplError as error:
            yield RoomFinding(RoomProblem.CORRUPT_GROUP, room.room_id, subject, str(error))
    txn.execute(
        "SELECT coalesce(min(group_no), 1) - 1 FROM (SELECT group_no FROM synrepl._state_groups"
        " WHERE room_no = %s ORDER BY group_no DESC LIMIT %s) g",
        (room.room_no, EXAMINED_GROUPS),
    )
    before = int(txn.fetchone()[0])
    yield from GroupVerifier(room).page(txn, (False, before), EXAMINED_GROUPS).findings


def _standing_still(txn: Transaction, room: RoomRow) -> Iterator[RoomFinding]:
    """A partial room whose completion does not come forward."""
    progress = resync_progress(txn, room.room_no)
    if progress is not None and progress.stands_still:
        detail = (
            f"it was joined {progress.age_s / 60:.0f} min ago and has not come forward for"
            f" {progress.idle_s / 60:.0f} min: {progress.sentence}; 'synrepl rooms resync' says more"
        )
        yield RoomFinding(RoomProblem.STANDS_STILL, room.room_id, "partial state", detail)


def _differing_ends(txn: Transaction, room: RoomRow) -> Iterator[RoomFinding]:
    """Lines whose last state is not that of their last group."""
    txn.execute(
        "SELECT l.line_no, l.head FROM synrepl._state_lines l JOIN synrepl._state_groups g"
        " ON g.room_no = l.room_no AND g.group_no = l.head"
        " WHERE l.room_no = %s AND l.depth >= 0 ORDER BY l.line_no = %s DESC, l.head DESC LIMIT %s",
        (room.room_no, room.main_line, EXAMINED_LINES),
    )
    for line_no, head in txn.fetchall():
        try:
            is_wrong = any(differing_groups(txn, room, [head]))
            detail = f"at its end, its state is not that of group {head}"
        except SynreplError as error:
            is_wrong, detail = True, str(error)
        if is_wrong:
            yield RoomFinding(RoomProblem.WRONG_LINE, room.room_id, f"line {line_no}", detail)


#: Bytes of a row with its share of the indexes, by table; and the number of rows of each room.
_TABLES = (
    ("_room_events", "h.events + h.outliers"),
    ("_room_event_json", "h.events + h.outliers"),
    (
        "_state_groups",
        "(SELECT count(*) FROM synrepl._state_groups g WHERE g.room_no = h.room_no)",
    ),
    (
        "_state_line",
        "(SELECT count(*) FROM synrepl._state_line v JOIN synrepl._state_lines l USING (line_no)"
        " WHERE l.room_no = h.room_no)",
    ),
    (
        "_current_state",
        "(SELECT count(*) FROM synrepl._current_state c WHERE c.room_no = h.room_no)",
    ),
)


def forecast_rooms(txn: Transaction, rooms: int) -> list[RoomForecast]:
    """The sizes of the largest rooms, the largest first.

    Sizes of rows come from PostgreSQL's statistics, the number of rows on a page as of the last ANALYZE.
    """
    shares = [f"{count} * {_bytes_per_row(txn, table)!r}::float8" for table, count in _TABLES]
    txn.execute(
        "WITH largest AS (SELECT * FROM synrepl._room_heads ORDER BY events DESC LIMIT %s)"
        f" SELECT r.room_id, h.events, {' + '.join(shares)}, n.number,"
        "  extract(epoch FROM now()) * 1000 - n.oldest"
        " FROM largest h JOIN synrepl._rooms r USING (room_no)"
        " CROSS JOIN LATERAL (SELECT count(*) AS number, min(origin_server_ts) AS oldest"
        "  FROM (SELECT e.origin_server_ts FROM synrepl._room_events e WHERE e.room_no = h.room_no"
        "   AND e.stream_id IS NOT NULL ORDER BY e.stream_id DESC LIMIT %s) s) n"
        " ORDER BY 3 DESC",
        (rooms, GROWTH_EVENTS),
    )
    found = []
    for room_id, events, size, number, span_ms in txn.fetchall():
        days = max(float(span_ms or 0), _DAY_MS) / _DAY_MS
        rate = number / days
        growth = 365 * rate * size / max(events, 1)
        found.append(RoomForecast(room_id, events, int(size), rate, int(size + growth)))
    return found


def _bytes_per_row(txn: Transaction, table: str) -> float:
    """The size of a table with its indexes, divided by its rows as PostgreSQL's planner estimates them."""
    txn.execute(
        "SELECT pg_total_relation_size(c.oid), c.reltuples, c.relpages,"
        " pg_relation_size(c.oid) / current_setting('block_size')::int"
        " FROM pg_class c WHERE c.oid = to_regclass(%s)",
        (f"synrepl.{table}",),
    )
    size, tuples, pages_then, pages = txn.fetchone()
    if tuples > 0 and pages_then > 0:
        rows = tuples / pages_then * pages
    else:  # never analysed, so it is small, or empty
        txn.execute(f"SELECT count(*) FROM synrepl.{table}")
        (rows,) = txn.fetchone()
    return float(size) / max(float(rows), 1.0)
