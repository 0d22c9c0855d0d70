"""What lists of rooms are filtered by: types, names and encryption of rooms, children of spaces, and who was removed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import msgspec

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.timelines.event_sources import WantedEvent, read_sources
from synrepl.storage.rooms.timelines.user_rooms import UserRoom, joined_once

_CREATE, _NAME, _ENCRYPTION = "m.room.create", "m.room.name", "m.room.encryption"
_CHILD = "m.space.child"


class _ListedContent(msgspec.Struct):
    type: object = None
    name: object = None
    via: object = None


class _ListedEvent(msgspec.Struct):
    content: _ListedContent


_EVENT = msgspec.json.Decoder(_ListedEvent)


def room_types(txn: Transaction, rooms: Collection[UserRoom]) -> dict[int, str | None]:
    """The types of rooms, by number; None for one without a type, or with a damaged create event. They never change."""
    return _texts(txn, rooms, _CREATE, "type")


def room_names(txn: Transaction, rooms: Collection[UserRoom]) -> dict[int, str | None]:
    """The names of rooms, by number; None for one without a name, or with a damaged one."""
    return _texts(txn, rooms, _NAME, "name")


def encrypted_rooms(txn: Transaction, rooms: Collection[UserRoom]) -> dict[int, bool]:
    """Whether rooms are encrypted, by number."""
    found = {room_no for room_no, _, _ in _entries(txn, rooms, _ENCRYPTION, "")}
    return {each.room_no: each.room_no in found for each in rooms}


def space_children(txn: Transaction, spaces: Collection[UserRoom]) -> dict[int, frozenset[str]]:
    """The IDs of the rooms that spaces name as children, by number of the space.

    Source: https://spec.matrix.org/v1.16/client-server-api/#mspacechild: one without ``via`` is none.
    """
    entries = _entries(txn, spaces, _CHILD, None)
    contents = _contents(txn, spaces, entries)
    children: dict[int, set[str]] = defaultdict(set)
    for room_no, state_key, event_no in entries:
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


def _texts(
    txn: Transaction, rooms: Collection[UserRoom], kind: str, name: str
) -> dict[int, str | None]:
    """A text in the contents of entries of a type, by number of the room."""
    entries = _entries(txn, rooms, kind, "")
    contents = _contents(txn, rooms, entries)
    found: dict[int, str | None] = dict.fromkeys(each.room_no for each in rooms)
    for room_no, _, event_no in entries:
        value = getattr(contents.get(event_no), name, None)
        found[room_no] = value if isinstance(value, str) else None
    return found


def _entries(
    txn: Transaction, rooms: Collection[UserRoom], kind: str, state_key: str | None
) -> list[tuple[int, str, int]]:
    """Entries of current states of a type: number of the room, state key, number of the event.

    :param state_key: None: any
    """
    if not rooms:
        return []
    where = "" if state_key is None else " AND k.state_key = %(key)s"
    txn.execute(
        "SELECT k.room_no, k.state_key, c.event_no FROM unnest(%(rooms)s::int[]) AS w (room_no)"
        f" JOIN synrepl._room_keys k ON k.room_no = w.room_no AND k.type = %(type)s{where}"
        " JOIN synrepl._current_state c ON c.room_no = k.room_no AND c.slot = k.slot",
        {"rooms": [each.room_no for each in rooms], "type": kind, "key": state_key},
    )
    return [(int(no), str(key), int(event_no)) for no, key, event_no in txn.fetchall()]


def _contents(
    txn: Transaction, rooms: Collection[UserRoom], entries: Sequence[tuple[int, str, int]]
) -> dict[int, _ListedContent]:
    """The contents of events, by number."""
    versions = {each.room_no: each.version for each in rooms}
    wanted = [WantedEvent(event_no, versions[room_no]) for room_no, _, event_no in entries]
    sources = read_sources(txn, wanted).events
    return {number: _EVENT.decode(each.json).content for number, each in sources.items()}
