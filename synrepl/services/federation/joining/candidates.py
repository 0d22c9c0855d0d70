"""Which servers are asked for a membership in a room, in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from synrepl.rooms import BadIdentifier, check_server_name, server_of
from synrepl.storage.federation.membership_facts import MembershipFacts

#: Servers that are asked at most.
MAX_ASKED = 10

#: Servers that a client may name.
MAX_VIA = 20


def candidates(
    room_id: str, via: Sequence[str], found: Sequence[str], facts: MembershipFacts, own: str
) -> list[str]:
    """The servers to ask, each once, the most promising first.

    Who invited the user knows the room, and wants the user in it. Then come those that the user names, that the alias
    was found with, by which the room was joined, whose users the room's state shows, and those known to be in it.

    :param via: as the user names them
    :param found: with the alias of the room
    :param own: the name of this server
    """
    inviting = facts.remote is not None and facts.remote.membership == "invite"
    named = [
        *([_server(facts.remote.sender)] if inviting and facts.remote is not None else ()),
        *via[:MAX_VIA],
        *found[:MAX_VIA],
        *([facts.joined_via] if facts.joined_via else ()),
        *facts.shown_by,
        _server(room_id),
        *facts.servers,
    ]
    return list(_usable(named, own))[:MAX_ASKED]


def _server(identifier: str) -> str:
    """The server in an identifier; empty for one without, such as the ID of a room of version 12."""
    try:
        return server_of(identifier)
    except BadIdentifier:
        return ""


def _usable(names: Iterable[str], own: str) -> Iterable[str]:
    for name in dict.fromkeys(names):
        if name == own:
            continue
        try:
            check_server_name(name)
        except BadIdentifier:
            continue
        yield name
