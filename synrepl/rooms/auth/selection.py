"""Auth events selection: which state authorises an event, and whether its ``auth_events`` match.

Sources: https://spec.matrix.org/v1.16/server-server-api/#auth-events-selection; step 3 of
https://spec.matrix.org/v1.16/rooms/v12/#authorization-rules (step 2 of earlier versions).
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from synrepl.rooms.auth.third_party import token_of
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import (
    AUTHORISING_USER,
    CREATE,
    CREATE_KEY,
    JOIN_RULES_KEY,
    MEMBER,
    POWER_LEVELS_KEY,
    THIRD_PARTY_INVITE,
)
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.state import StateKey


def auth_event_keys(event: Event) -> tuple[StateKey, ...]:
    """The state keys that authorise an event, each once.

    In version 12 ``m.room.create`` is not among them: the room ID implies it.
    """
    if event.type == CREATE:
        return ()
    sender = (MEMBER, event.sender)
    keys: tuple[StateKey, ...] = (POWER_LEVELS_KEY, sender)
    if not event.version.room_id_is_create_hash:
        keys = (CREATE_KEY, *keys)
    return keys if event.type != MEMBER else (*keys, *_membership_keys(event, sender))


def _membership_keys(event: Event, sender: StateKey) -> list[StateKey]:
    """The additional keys of an ``m.room.member``."""
    keys: list[StateKey] = []
    if event.state_key is not None and event.state_key != event.sender:
        keys.append((MEMBER, event.state_key))
    membership = event.membership
    if membership in ("join", "invite", "knock"):
        keys.append(JOIN_RULES_KEY)
    if membership == "invite":
        token = token_of(event)
        if token is not None:
            keys.append((THIRD_PARTY_INVITE, token))
    if event.version.restricted_joins:
        authorising_user = event.content.get(AUTHORISING_USER)
        if isinstance(authorising_user, str) and (key := (MEMBER, authorising_user)) not in (
            sender,
            *keys,
        ):
            keys.append(key)
    return keys


def check_auth_events(
    event: Event, cited: Sequence[Event], rejected: Container[str]
) -> Refusal | None:
    """Check step 3: whether the auth events of an event are the expected ones.

    :param cited: its auth events
    :param rejected: IDs of rejected events, at least of those among its auth events
    :returns: None when they are
    """
    ids = event.auth_event_ids
    if len(set(ids)) != len(ids):  # step 3.1; ``cited`` may lack the duplicate
        return Refusal("cites-twice", "it cites an event twice")
    allowed = set(auth_event_keys(event))
    needs_create = CREATE_KEY in allowed
    for each in cited:
        key = (each.type, each.state_key)
        if key not in allowed:  # steps 3.1 and 3.2
            return _unexpected_auth_event(event, each)
        allowed.remove(key)
        if each.event_id in rejected:  # step 3.3
            return Refusal("cites-rejected", f"it cites {each.event_id}, which is rejected")
        if each.room_id != event.room_id:  # step 3.5
            return Refusal("cites-other-room", f"it cites {each.event_id} of another room")
    if needs_create and CREATE_KEY in allowed:  # step 2.4 of versions before 12
        return Refusal("cites-no-create", "it does not cite the room's m.room.create")
    return None


def _unexpected_auth_event(event: Event, cited: Event) -> Refusal:
    if (cited.type, cited.state_key) in auth_event_keys(event):
        return Refusal("cites-twice", f"it cites {cited.type} of one state_key twice")
    return Refusal("cites-needless", f"it cites {cited.event_id}, which does not authorise it")
