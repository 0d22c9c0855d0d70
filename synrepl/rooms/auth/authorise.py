"""State-dependent authorization rules, in the order in which they apply.

Source: https://spec.matrix.org/v1.16/rooms/v12/#authorization-rules, steps 4 to 11, and the same
section of each earlier version. Steps are numbered as in version 12. From step 5 on, the numbers are the
same in versions 1 to 5, and lower by one in versions 6 to 11. Steps 1 and 3 need no state: they are in
``state_independent`` and ``selection``. Step 2 (the room ID is that of an accepted ``m.room.create``) is up
to the caller, who must not pass the state of another room.
"""

from __future__ import annotations

from synrepl.rooms.auth.membership import check_joined, check_member
from synrepl.rooms.auth.power_levels import (
    check_change,
    check_redaction,
    check_to_send,
    power_levels_at,
)
from synrepl.rooms.auth.third_party import check_third_party_invite_event
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import (
    ALIASES,
    CREATE,
    CREATE_KEY,
    MEMBER,
    POWER_LEVELS,
    REDACTION,
    THIRD_PARTY_INVITE,
)
from synrepl.rooms.identifiers import server_part
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.state import StateEvents


def authorise(event: Event, state: StateEvents) -> Refusal | None:
    """Check an event against the state-dependent rules.

    :param state: the room state to check against. Only ``get`` is called, with the keys of
        :func:`synrepl.rooms.auth.selection.auth_event_keys` and of ``m.room.create``
    :returns: None when the event is allowed
    """
    kind = event.type
    if kind == CREATE:
        return None
    create = state.get(CREATE_KEY)
    if create is None:
        return Refusal("no-create", "the room has no m.room.create")
    refusal = _check_federation(event, create)
    if refusal is not None:
        return refusal
    if kind == MEMBER:
        return check_member(event, state, create)
    if kind == ALIASES and event.version.aliases_are_authorised:
        return _check_aliases(event)
    refusal = check_joined(event, state)
    if refusal is not None:
        return refusal
    if kind == THIRD_PARTY_INVITE:
        return check_third_party_invite_event(event, state, create)
    levels = power_levels_at(state, create)
    refusal = check_to_send(event, levels) or _check_state_key(event)
    if refusal is not None:
        return refusal
    if kind == POWER_LEVELS:
        return check_change(event, state, create, levels)
    if kind == REDACTION and event.version.redactions_are_authorised:
        return check_redaction(event, levels)
    return None


def _check_federation(event: Event, create: Event) -> Refusal | None:
    """Step 4: ``m.federate: false`` restricts the room to the creator's server.

    As in Synapse, the user whose membership changes must be on that server, too
    (docs/adr/0016-events-and-auth-rules.md).
    """
    if create.content.get("m.federate") is not False:
        return None
    users = [event.sender]
    if event.type == MEMBER and event.state_key is not None:
        users.append(event.state_key)
    for user in users:
        if server_part(user) != server_part(create.sender):
            return Refusal("unfederated", f"the room is not open to {user}")
    return None


def _check_aliases(event: Event) -> Refusal | None:
    """Step 4 of versions 1 to 5: a server sets its own aliases; membership is not checked."""
    if event.state_key is None:
        return Refusal("aliases-no-state", "m.room.aliases has no state_key")
    if event.state_key != server_part(event.sender):
        return Refusal("aliases-other-server", f"{event.sender} is not of {event.state_key}")
    return None


def _check_state_key(event: Event) -> Refusal | None:
    """Step 9: a state key that is a user ID may be set by that user only."""
    owner = event.state_key
    if owner is None or owner[:1] != "@" or owner == event.sender:
        return None
    return Refusal("state-of-other", f"{event.sender} cannot set state of {owner}")
