"""Which outliers and state keys of a room nothing needs, in pages.

Each function reads one page, so that no statement takes longer because the room is larger, and none unpacks what it
does not look at. An outlier is needed by a state, by an event that cites it, by the event that it redacts, by an event
that waits, and by an outlier that is needed itself.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from typing import NamedTuple

from synrepl.rooms import auth_dependencies, parse_event, room_version
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.state_groups import unpacked_changes
from synrepl.storage.rooms.tables.numbers import RoomRow

#: Rows of a page, and bytes of the changes of groups in it.
PAGE_ROWS = 2_000
PAGE_BYTES = 4 << 20

#: Waiting events of a page: their JSON is parsed.
PAGE_WAITING = 100


class ReferencesPage(NamedTuple):
    """What a page refers to.

    :ivar numbers: of events, or slots
    :ivar next_page: where to go on; None at the end
    """

    numbers: Set[int]
    next_page: int | None


def outliers_below(txn: Transaction, room_no: int, below: int, limit: int) -> list[int]:
    """Outliers with lower event numbers, the highest first."""
    txn.execute(
        "SELECT event_no FROM synrepl._room_events WHERE room_no = %s AND stream_id IS NULL"
        " AND event_no < %s ORDER BY event_no DESC LIMIT %s",
        (room_no, below, limit),
    )
    return [int(number) for (number,) in txn.fetchall()]


def cited_by_events(txn: Transaction, room_no: int, after: int) -> ReferencesPage:
    """What a page of full events cites, with the redactions that apply to them.

    :param after: the stream ID where the page begins
    """
    return _cited(txn, room_no, "stream_id", "stream_id IS NOT NULL", after, (0, 0))


def cited_by_outliers(
    txn: Transaction, room_no: int, after: int, but: tuple[int, int]
) -> ReferencesPage:
    """What a page of outliers cites, with the redactions that apply to them.

    :param after: the event number where the page begins
    :param but: the lowest and the highest event number of outliers that are passed over
    """
    return _cited(txn, room_no, "event_no", "stream_id IS NULL", after, but)


def _cited(
    txn: Transaction, room_no: int, order: str, which: str, after: int, but: tuple[int, int]
) -> ReferencesPage:
    txn.execute(
        "WITH page AS (SELECT event_no, stream_id, auth_nos, redacted_by FROM synrepl._room_events"
        f"  WHERE room_no = %s AND {which} AND {order} > %s ORDER BY {order} LIMIT %s)"
        f" SELECT count(*), max({order}), ARRAY(SELECT DISTINCT n FROM page"
        "  CROSS JOIN LATERAL unnest(auth_nos || redacted_by) AS n"
        "  WHERE n IS NOT NULL AND event_no NOT BETWEEN %s AND %s) FROM page",
        (room_no, after, PAGE_ROWS, *but),
    )
    count, last, cited = txn.fetchone()
    return ReferencesPage(set(cited), int(last) if count == PAGE_ROWS else None)


def cited_by(txn: Transaction, numbers: Collection[int]) -> Set[int]:
    """What some events cite, with the redactions that apply to them."""
    txn.execute(
        "SELECT DISTINCT n FROM synrepl._room_events"
        " CROSS JOIN LATERAL unnest(auth_nos || redacted_by) AS n"
        " WHERE event_no = ANY (%s::bigint[]) AND n IS NOT NULL",
        (list(numbers),),
    )
    return {int(number) for (number,) in txn.fetchall()}


def in_current_state(txn: Transaction, room_no: int, after: int) -> ReferencesPage:
    """Events of a page of the current state.

    :param after: the slot where the page begins
    """
    txn.execute(
        "SELECT slot, event_no FROM synrepl._current_state WHERE room_no = %s AND slot > %s"
        " ORDER BY slot LIMIT %s",
        (room_no, after, PAGE_ROWS),
    )
    rows = txn.fetchall()
    last = int(rows[-1][0]) if len(rows) == PAGE_ROWS else None
    return ReferencesPage({int(event_no) for _, event_no in rows}, last)


class GroupsPage(NamedTuple):
    """What the changes of a page of state groups have.

    :ivar next_page: the group where to go on; None at the end
    """

    events: Set[int]
    slots: Set[int]
    next_page: int | None


def in_groups(txn: Transaction, room_no: int, after: int) -> GroupsPage:
    """Events and slots of a page of state groups.

    :param after: the group where the page begins
    """
    txn.execute(
        "SELECT group_no, changes FROM (SELECT group_no, changes,"
        "  sum(length(changes)) OVER (ORDER BY group_no) - length(changes) AS before FROM ("
        "  SELECT group_no, changes FROM synrepl._state_groups WHERE room_no = %s AND group_no > %s"
        "  ORDER BY group_no LIMIT %s) p) s WHERE before < %s ORDER BY group_no",
        (room_no, after, PAGE_ROWS, PAGE_BYTES),
    )
    events: set[int | None] = set()
    slots: set[int] = set()
    last = None
    for group, packed in txn:
        last = int(group)
        changes = unpacked_changes(packed)
        slots.update(changes)
        events.update(changes.values())
    return GroupsPage({each for each in events if each is not None}, slots, last)


class WaitingPage(NamedTuple):
    """What a page of waiting events cites.

    :ivar numbers: of the cited events that are here
    :ivar last_no: the last of the page, in the order in which they came
    :ivar is_last: whether none came after it
    """

    numbers: Set[int]
    last_no: int
    is_last: bool


def cited_by_waiting(txn: Transaction, room: RoomRow, after: int) -> WaitingPage:
    """What a page of waiting events cites: they are not judged yet, so that is in no column.

    :param after: where the page begins, in the order in which they came
    """
    txn.execute(
        "SELECT waiting_no, raw FROM synrepl._waiting_events WHERE room_no = %s AND waiting_no > %s"
        " ORDER BY waiting_no LIMIT %s",
        (room.room_no, after, PAGE_WAITING),
    )
    rows = txn.fetchall()
    version = room_version(room.version)
    cited = {
        each for _, raw in rows for each in auth_dependencies(parse_event(bytes(raw), version))
    }
    if cited:
        txn.execute(
            "SELECT event_no FROM synrepl._room_events"
            " WHERE event_id = ANY (%s::text[]) AND room_no = %s",
            ([each for each in cited if "\0" not in each], room.room_no),
        )
        cited_nos = {int(number) for (number,) in txn.fetchall()}
    else:
        cited_nos = set()
    last_no = int(rows[-1][0]) if rows else after
    return WaitingPage(cited_nos, last_no, len(rows) < PAGE_WAITING)


def keys_without_events(txn: Transaction, room_no: int, after: int) -> ReferencesPage:
    """Slots of a page of state keys that no event has.

    :param after: the slot where the page begins
    """
    txn.execute(
        "WITH page AS (SELECT slot FROM synrepl._room_keys WHERE room_no = %(room)s AND slot > %(after)s"
        "  ORDER BY slot LIMIT %(limit)s)"
        " SELECT count(*), max(slot), ARRAY(SELECT slot FROM page k WHERE NOT EXISTS ("
        "  SELECT FROM synrepl._room_events e WHERE e.room_no = %(room)s AND e.slot = k.slot))"
        " FROM page",
        {"room": room_no, "after": after, "limit": PAGE_ROWS},
    )
    count, last, slots = txn.fetchone()
    return ReferencesPage(set(slots), int(last) if count == PAGE_ROWS else None)


def slots_on_lines(txn: Transaction, room_no: int, slots: Collection[int]) -> Set[int]:
    """Those of some slots that state lines have versions of."""
    txn.execute(
        "SELECT s.slot FROM unnest(%s::int[]) AS s (slot) WHERE EXISTS ("
        " SELECT FROM synrepl._state_lines l JOIN synrepl._state_line v USING (line_no)"
        "  WHERE l.room_no = %s AND v.slot = s.slot)",
        (list(slots), room_no),
    )
    return {int(slot) for (slot,) in txn.fetchall()}


def slots_beside_lines(txn: Transaction, room_no: int, after: int) -> ReferencesPage:
    """Slots of a page of groups that are beside a line.

    :param after: the group where the page begins
    """
    txn.execute(
        "WITH page AS (SELECT group_no, slots FROM synrepl._state_group_lines"
        "  WHERE room_no = %s AND group_no > %s ORDER BY group_no LIMIT %s)"
        " SELECT count(*), max(group_no), ARRAY(SELECT DISTINCT n FROM page"
        "  CROSS JOIN LATERAL unnest(slots) AS n) FROM page",
        (room_no, after, PAGE_ROWS),
    )
    count, last, slots = txn.fetchone()
    return ReferencesPage(set(slots), int(last) if count == PAGE_ROWS else None)
