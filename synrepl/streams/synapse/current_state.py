"""Invalidations caused by a change of a room's current state.

Source: ``docs/protocol.md``, "Cache names with a meaning of their own". There
a change is a list: the room, then the users whose membership changed. Rows of the
``events`` stream that report a change are converted to the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from synrepl.streams.effects import (
    Effects,
    Expansion,
    Invalidates,
    Key,
    Marks,
    columns_key,
    entity,
    whole,
)

#: The room, and the users whose membership changed.
_Change = list[Any]


def _room(change: _Change) -> Iterable[Key]:
    return ((change[0],),)


def _room_of_members(change: _Change) -> Iterable[Key]:
    return ((change[0],),) if len(change) > 1 else ()


def _members(change: _Change) -> Iterable[Key]:
    return ((member,) for member in change[1:])


def _room_and_members(change: _Change) -> Iterable[Key]:
    room = change[0]
    return ((room, member) for member in change[1:])


def _room_and_hosts(change: _Change) -> Iterable[Key]:
    room = change[0]
    return ((room, host) for host in {host_of(member) for member in change[1:]})


def _any_pair(change: _Change) -> Iterable[Key | None]:
    return (None,) if len(change) > 1 else ()


def host_of(user_id: Any) -> str:
    """The server of a user, which is what follows the first colon; "" when there is none."""
    return str(user_id).partition(":")[2]


#: By cache, the function that derives the stale keys from a change.
_CACHES: dict[str, Callable[[_Change], Iterable[Key | None]]] = {
    "is_host_joined": _room_and_hosts,
    "is_host_invited": _room_and_hosts,
    "was_host_joined": _room_and_hosts,
    "get_users_in_room": _room_of_members,
    "get_current_hosts_in_room": _room_of_members,
    "get_users_in_room_with_profiles": _room_of_members,
    "get_number_joined_users_in_room": _room_of_members,
    "get_member_counts": _room_of_members,
    "get_local_users_in_room": _room_of_members,
    "does_pair_of_users_share_a_room": _any_pair,
    "get_user_in_room_with_profile": _room_and_members,
    "get_rooms_for_user": _members,
    "get_room_summary": _room,
    "get_current_state_ids": _room,
    "get_partial_current_state_ids": _room,
    "get_room_type": _room,
    "get_room_encryption": _room,
}

#: The name of a change in the ``caches`` stream.
CURRENT_STATE = Expansion(
    "cs_cache_fake",
    (
        *(Invalidates(name, keys) for name, keys in _CACHES.items()),
        Marks("room_state", lambda change: change[:1]),
        Marks("membership", lambda change: change[1:]),
    ),
)


def _change(row: Any) -> _Change:
    """The change that one entry of the state is."""
    return [row.room_id, row.state_key] if row.type == "m.room.member" else [row.room_id]


@cache  # effects that share a function have it called once
def _of_entry(of_change: Callable[[_Change], Iterable[Any]]) -> Callable[[Any], Iterable[Any]]:
    return lambda row: of_change(_change(row))


#: Effects of a ``state`` row of the ``events`` stream.
STATE_ENTRY: Effects = tuple(
    Invalidates(effect.cache, _of_entry(effect.keys))
    if isinstance(effect, Invalidates)
    else Marks(effect.index, _of_entry(effect.entities))
    for effect in CURRENT_STATE.effects
)


def every_entry(room: Callable[[Any], Iterable[Key]]) -> Effects:
    """All entries of a room, and of caches whose entries cannot be selected by room.

    :param room: gives the room as a key
    """
    without_room = (_members, _any_pair)
    return tuple(
        Invalidates(name, whole if keys in without_room else room) for name, keys in _CACHES.items()
    )


#: Effects of a ``state-all`` row, which does not name the users whose membership changed.
ALL_STATE: Effects = (
    *every_entry(columns_key("room_id")),
    Marks("room_state", entity("room_id")),
    Marks("membership", whole),
)
