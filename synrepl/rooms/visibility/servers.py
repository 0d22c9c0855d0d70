"""Whether another server may see an event in full, or only redacted, which keeps the event graph complete.

The specification states the rules for users only
(https://spec.matrix.org/v1.16/client-server-api/#room-history-visibility); a server may see what any
of its users may see (docs/adr/0015-who-may-see-an-event.md).
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from synrepl.rooms.event import Event
from synrepl.rooms.event_types import MEMBER
from synrepl.rooms.identifiers import server_part
from synrepl.rooms.state import StateEvents
from synrepl.rooms.visibility.audience import (
    INVITE,
    JOIN,
    LEAVE,
    EventAudience,
    HistoryVisibility,
    Sight,
    VisibilityReason,
    VisibilityVerdict,
    membership,
    more_permissive,
)

#: For each server, the most permissive membership of its users.
ServerMemberships = Mapping[str, str]


def server_memberships_at(event: Event, before: StateEvents) -> ServerMemberships:
    """The memberships of servers after an event."""
    members = {key: entry for (kind, key), entry in before.items() if kind == MEMBER}
    if event.type == MEMBER and event.state_key is not None:
        members[event.state_key] = event
    found: dict[str, str] = {}
    for user, entry in members.items():
        server = server_part(user)
        found[server] = more_permissive(found.get(server, LEAVE), membership(entry))
    return found


def visible_to_server(
    audience: EventAudience,
    server: str,
    server_memberships: ServerMemberships,
    erased: Container[str] = frozenset(),
) -> VisibilityVerdict:
    """Whether a server may see an event in full, or only redacted.

    :param server_memberships: in the state after the event; only this server's is read
    :param erased: users whose accounts were erased
    """
    is_erased = audience.sender in erased
    reason = _by_history(audience.visibility, server_memberships.get(server, LEAVE))
    whole = reason.shows and not is_erased
    return VisibilityVerdict(Sight.FULL if whole else Sight.REDACTED, reason, is_erased)


def _by_history(visibility: HistoryVisibility, best: str) -> VisibilityReason:
    if visibility is HistoryVisibility.WORLD_READABLE:
        return VisibilityReason.WORLD_READABLE
    if visibility is HistoryVisibility.SHARED:
        return VisibilityReason.SHARED
    if best == JOIN:
        return VisibilityReason.JOINED
    if visibility is HistoryVisibility.JOINED:
        return VisibilityReason.NOT_JOINED
    return VisibilityReason.INVITED if best == INVITE else VisibilityReason.NOT_INVITED
