"""What another server gets of an event: all of it, or its redacted form, which keeps the graph whole.

The specification states the rules for users only
(https://spec.matrix.org/v1.16/client-server-api/#room-history-visibility); a server may see what any
of its users might (docs/adr/0015-who-may-see-an-event.md).
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from synrepl.rooms.auth.users import server_part
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import MEMBER
from synrepl.rooms.state import StateEvents
from synrepl.rooms.visibility.audience import (
    INVITE,
    JOIN,
    LEAVE,
    Audience,
    HistoryVisibility,
    membership,
    more_permissive,
)
from synrepl.rooms.visibility.verdict import Reason, Sight, Verdict

#: For each server the most permissive membership of its users.
Presence = Mapping[str, str]


def presence_at(event: Event, before: StateEvents) -> Presence:
    """Which servers are in the room, or invited, after an event."""
    members = {key: entry for (kind, key), entry in before.items() if kind == MEMBER}
    if event.type == MEMBER and event.state_key is not None:
        members[event.state_key] = event
    found: dict[str, str] = {}
    for user, entry in members.items():
        server = server_part(user)
        found[server] = more_permissive(found.get(server, LEAVE), membership(entry))
    return found


def seen_by_server(
    audience: Audience, server: str, presence: Presence, erased: Container[str] = frozenset()
) -> Verdict:
    """Whether a server may have an event, or only its redacted form.

    :param presence: of the state after the event; only asked for this server
    :param erased: users who erased themselves
    """
    gone = audience.sender in erased
    reason = _by_history(audience.visibility, presence.get(server, LEAVE))
    whole = reason.shows and not gone
    return Verdict(Sight.FULL if whole else Sight.REDACTED, reason, gone)


def _by_history(visibility: HistoryVisibility, best: str) -> Reason:
    if visibility is HistoryVisibility.WORLD_READABLE:
        return Reason.WORLD_READABLE
    if visibility is HistoryVisibility.SHARED:
        return Reason.SHARED
    if best == JOIN:
        return Reason.JOINED
    if visibility is HistoryVisibility.JOINED:
        return Reason.NOT_JOINED
    return Reason.INVITED if best == INVITE else Reason.NOT_INVITED
