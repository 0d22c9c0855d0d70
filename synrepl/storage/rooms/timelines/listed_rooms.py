"""What lists of rooms are filtered by: types, names and encryption of rooms, children of spaces, and who was removed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.rooms.timelines.event_sources import WantedEvent, read_sources
from synrepl.storage.rooms.timelines.user_rooms import UserRoom, joined_once

_CREATE, _NAME, _ENCRYPTION = "m.room.create", "m.room.name", "m.room.encryption"
_CHILD = "m.space.child"


class RoomAttributes(NamedTuple):
    """What the current state of a room says of it.

    :ivar room_type: ``type`` of its create event
    """

    room_type: str | None = None
    name: str | None = None
    is_encrypted: bool = False


class _Content(msgspec.Struct):
    type: object = None
    name: object = None
    via: object = None


class _Event(msgspec.Struct):
    content: _Content


_EVENT = msgspec.json.Decoder(_Event)


def room_attributes(txn: Transaction, rooms: Collection[UserRoom]) -> dict[int, RoomAttributes]:
    """The attributes of rooms, by number. A damaged event counts as absent."""
    entries = _entries(txn, rooms, (_CREATE, _NAME, _ENCRYPTION), "AND k.state_key = ''")
    versions = {each.room_no: each.version for each in rooms}
    contents = _contents(txn, versions, [e for e in entries if e[1] != _ENCRYPTION])
    found = {each.room_no: RoomAttributes() for each in rooms}
    for room_no, kind, _, event_no in entries:
        if kind == _ENCRYPTION:
            found[room_no] = found[room_no]._replace(is_encrypted=True)
        elif kind == _CREATE:
            found[room_no] = found[room_no]._replace(room_type=_text(contents, event_no, "type"))
        else:
            found[room_no] = found[room_no]._replace(name=_text(contents, event_no, "name"))
    return found


def space_children(txn: Transaction, spaces: Collection[UserRoom]) -> dict[int, frozenset[str]]:
    """The IDs of the rooms that spaces name as children, by number of the space.

    Source: https://spec.matrix.org/v1.16/client-server-api/#mspacechild: one without ``via`` is none.
    """
    entries = _entries(txn, spaces, (_CHILD,), "")
    versions = {each.room_no: each.version for each in spaces}
    contents = _contents(txn, versions, entries)
    children: dict[int, set[str]] = defaultdict(set)
    for room_no, _, state_key, event_no in entries:
        content = contents.get(event_no)
        if content is not None and isinstance(content.via, list) and content.via:
            children[room_no].add(state_key)
    return {each.room_no: frozenset(children[each.room_no]) for each in spaces}


def removed_from(txn: Transaction, user: str, rooms: Sequence[UserRoom]) -> set[int]:
    """Those of some rooms that the user left, by number, in which the user was once and from which somebody else removed the user."""
    if not rooms:
        return set()
    txn.execute(
        "SELECT e.event_no FROM synrepl._room_events e WHERE e.event_no = ANY (%s::bigint[])"
        " AND e.sender <> %s",
        ([each.member_no for each in rooms if each.member_no is not None], user),
    )
    by_others = {int(event_no) for (event_no,) in txn.fetchall()}
    return joined_once(txn, [each for each in rooms if each.member_no in by_others])


def _entries(
    txn: Transaction, rooms: Collection[UserRoom], types: Sequence[str], where: str
) -> list[tuple[int, str, str, int]]:
    """Entries of current states: number of the room, type, state key, number of the event."""
    txn.execute(
        "SELECT k.room_no, k.type, k.state_key, c.event_no"
        " FROM unnest(%s::int[]) AS w (room_no) CROSS JOIN unnest(%s::text[]) AS t (type)"
        f" JOIN synrepl._room_keys k ON k.room_no = w.room_no AND k.type = t.type {where}"
        " JOIN synrepl._current_state c ON c.room_no = k.room_no AND c.slot = k.slot",
        ([each.room_no for each in rooms], array_text(types)),
    )
    return [(int(no), kind, key, int(event_no)) for no, kind, key, event_no in txn.fetchall()]


def _contents(
    txn: Transaction, versions: Mapping[int, str], entries: Sequence[tuple[int, str, str, int]]
) -> dict[int, _Content]:
    """The contents of events, by number."""
    wanted = [WantedEvent(event_no, versions[room_no]) for room_no, _, _, event_no in entries]
    sources = read_sources(txn, wanted).events
    return {number: _EVENT.decode(each.json).content for number, each in sources.items()}


def _text(contents: Mapping[int, _Content], event_no: int, name: str) -> str | None:
    value = getattr(contents.get(event_no), name, None)
    return value if isinstance(value, str) else None
