"""Rooms with their figures, their ends and their members, page by page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from synrepl.core.errors import InputError
from synrepl.rooms import StateKey, room_version
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.events import events_by_number, parsed_events
from synrepl.storage.rooms.tables.heads import backward_extremities, forward_extremities, read_heads
from synrepl.storage.rooms.tables.numbers import UnknownRoom, require_room
from synrepl.storage.rooms.tables.waiting import missing_events

#: Maximum number of rows on a page.
MAX_PAGE = 1_000

#: IDs of a kind that :func:`room_heads` lists.
MAX_HEADS = 1_000

#: The entries of the current state that name a room.
_NAMING: Mapping[StateKey, str] = {
    ("m.room.name", ""): "name",
    ("m.room.canonical_alias", ""): "alias",
}


class BadRoomLimit(InputError):
    """a page has from 1 to {most} rows, and {limit} were asked for"""


class RoomFigures(NamedTuple):
    """A room and its figures.

    :ivar name: its name, or its alias; None if it has neither
    :ivar state: number of entries of the current state
    :ivar joined: number of users that are joined
    :ivar events: number of events with their state
    :ivar partial: number of events with partial state
    :ivar is_partial: whether the full state of the room is not known yet
    :ivar waiting: number of events that wait for others
    :ivar stream_id: of the newest event; 0: there is none
    :ivar topological: the highest topological ordering
    """

    room_id: str
    version: str
    name: str | None
    state: int
    joined: int
    events: int
    outliers: int
    partial: int
    waiting: int
    extremities: int
    stream_id: int
    topological: int
    is_partial: bool


class RoomEnds(NamedTuple):
    """The ends of a room, each with at most :data:`MAX_HEADS` IDs.

    :ivar forward: the forward extremities
    :ivar backward: events that others follow, and that are not here with their state
    :ivar missing: events that waiting events need
    """

    forward: Sequence[str]
    backward: Sequence[str]
    missing: Sequence[str]


class RoomMember(NamedTuple):
    """A user in a room's current state.

    :ivar stream_id: of the fact that made this the current membership
    """

    user_id: str
    membership: str
    event_id: str
    stream_id: int


def list_rooms(txn: Transaction, after: str | None = None, limit: int = 100) -> list[RoomFigures]:
    """Rooms in the order of their IDs, without those that are being forgotten.

    :param after: the ID of the last room of the page before
    :raises BadRoomLimit: :raises CorruptEvent: :raises MissingJson:
    """
    check_limit(limit)
    where, params = ("", ()) if after is None else (" AND r.room_id > %s", (_text(after),))
    return _figures(
        txn,
        f" WHERE r.room_id NOT LIKE 'forgotten %%'{where} ORDER BY r.room_id LIMIT %s",
        (*params, limit),
    )


def room_figures(txn: Transaction, room_id: str) -> RoomFigures:
    """One room.

    :raises UnknownRoom: it is not here
    :raises CorruptEvent: :raises MissingJson: its name is damaged
    """
    found = _figures(txn, " WHERE r.room_id = %s", (_text(room_id),))
    if not found:
        raise UnknownRoom(room_id=_text(room_id))
    return found[0]


def room_ends(txn: Transaction, room_id: str) -> RoomEnds:
    """The forward and backward extremities of a room, and the events that it lacks.

    :raises UnknownRoom: it is not here
    """
    room_no = require_room(txn, _text(room_id)).room_no
    if read_heads(txn, room_no) is None:
        return RoomEnds((), (), ())
    backward = {each.missing_id for each in backward_extremities(txn, room_no)}
    return RoomEnds(
        sorted(forward_extremities(txn, room_no).values())[:MAX_HEADS],
        sorted(backward)[:MAX_HEADS],
        sorted(missing_events(txn, room_no))[:MAX_HEADS],
    )


def room_members(
    txn: Transaction,
    room_id: str,
    membership: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> list[RoomMember]:
    """Users with a membership event in the current state, in the order of their IDs.

    :param membership: only those with this membership
    :param after: the ID of the last user of the page before
    :raises UnknownRoom: :raises BadRoomLimit:
    """
    check_limit(limit)
    room_no = require_room(txn, _text(room_id)).room_no
    where, params = "", list[object]()
    if membership is not None:
        where += " AND m.membership = %s"
        params.append(_text(membership))
    if after is not None:
        where += " AND m.user_id > %s"
        params.append(_text(after))
    txn.execute(
        "SELECT m.user_id, m.membership, e.event_id, m.stream_id FROM synrepl._memberships m"
        f" JOIN synrepl._room_events e USING (event_no) WHERE m.room_no = %s{where}"
        " ORDER BY m.user_id LIMIT %s",
        (room_no, *params, limit),
    )
    return [RoomMember._make(row) for row in txn.fetchall()]


def check_limit(limit: int, most: int = MAX_PAGE) -> None:
    """Check the size of a page.

    :raises BadRoomLimit:
    """
    if not 1 <= limit <= most:
        raise BadRoomLimit(limit=limit, most=most)


def _figures(txn: Transaction, clauses: str, params: Iterable[object]) -> list[RoomFigures]:
    txn.execute(
        "SELECT r.room_no, r.room_id, r.version, coalesce(g.size, 0),"
        " (SELECT count(*) FROM synrepl._memberships m"
        "  WHERE m.room_no = r.room_no AND m.membership = 'join'),"
        " coalesce(h.events, 0), coalesce(h.outliers, 0), coalesce(h.partial, 0),"
        " coalesce(h.waiting, 0), coalesce(h.extremities, 0), coalesce(h.stream_id, 0),"
        " coalesce(h.topological, 0), p.room_no IS NOT NULL FROM synrepl._rooms r"
        " LEFT JOIN synrepl._room_heads h USING (room_no)"
        " LEFT JOIN synrepl._partial_rooms p USING (room_no)"
        " LEFT JOIN synrepl._state_groups g"
        f"  ON g.room_no = r.room_no AND g.group_no = h.current_group{clauses}",
        tuple(params),
    )
    rows = txn.fetchall()
    names = _names(txn, {int(row[0]): str(row[2]) for row in rows})
    return [RoomFigures(row[1], row[2], names.get(row[0]), *row[3:]) for row in rows]


def _names(txn: Transaction, versions: Mapping[int, str]) -> dict[int, str]:
    """The names of rooms, by number.

    :param versions: of the rooms, by number
    """
    if not versions:
        return {}
    txn.execute(
        "SELECT c.room_no, c.event_no FROM synrepl._room_keys k"
        " JOIN synrepl._current_state c USING (room_no, slot)"
        " WHERE k.room_no = ANY (%s::int[]) AND k.type = ANY (%s::text[]) AND k.state_key = ''",
        (list(versions), [kind for kind, _ in _NAMING]),
    )
    numbers = {int(event_no): int(room_no) for room_no, event_no in txn.fetchall()}
    stored = events_by_number(txn, numbers)
    by_version: dict[str, list[Any]] = {}
    for number, room_no in numbers.items():
        if number in stored:
            by_version.setdefault(versions[room_no], []).append(stored[number])
    found: dict[int, dict[str, str]] = {}
    for version, events in by_version.items():
        for event in parsed_events(txn, room_version(version), events).values():
            member = _NAMING.get((event.type, event.state_key or ""), "")
            text = event.content.get(member)
            if isinstance(text, str) and text:
                room_no = next(each.room_no for each in events if each.event_id == event.event_id)
                found.setdefault(room_no, {})[member] = text
    return {room_no: texts.get("name") or texts["alias"] for room_no, texts in found.items()}


def _text(text: str) -> str:
    """A text that can be compared in PostgreSQL; nothing that is stored has NUL."""
    return text.replace("\0", "\ufffd")


def without_nul(texts: Collection[str]) -> list[str]:
    """Those of some texts that can be stored."""
    return [each for each in texts if "\0" not in each]
