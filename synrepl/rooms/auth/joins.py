"""Rules for ``m.room.member`` events with membership ``join``, and the join rule.

Source: step 5.3 of https://spec.matrix.org/v1.16/rooms/v12/#authorization-rules. Knocking exists from
version 7 on, restricted joins from version 8.
"""

from __future__ import annotations

from synrepl.rooms.auth.create import creator_of
from synrepl.rooms.auth.power_levels import power_levels_at
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import AUTHORISING_USER, JOIN_RULES_KEY, MEMBER
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.state import StateEvents
from synrepl.rooms.versions import RoomVersion


def join_rule_of(state: StateEvents) -> object:
    """The room's join rule; ``invite`` when the room has none."""
    rules = state.get(JOIN_RULES_KEY)
    return "invite" if rules is None else rules.content.get("join_rule", "invite")


def allows_restricted_joins(rule: object, version: RoomVersion) -> bool:
    """Whether users may join who are authorised by a member (``join_authorised_via_users_server``)."""
    return (rule == "restricted" and version.restricted_joins) or (
        rule == "knock_restricted" and version.knock_restricted_joins
    )


def allows_knocking(rule: object, version: RoomVersion) -> bool:
    """Whether the join rule allows knocking."""
    return (rule == "knock" and version.knocking) or (
        rule == "knock_restricted" and version.knock_restricted_joins
    )


def check_join(event: Event, target: str, state: StateEvents, create: Event) -> Refusal | None:
    """Check step 5.3.

    :param target: the user who joins
    """
    if _is_creators_first(event, target, create):
        return None
    if event.sender != target:  # step 5.3.2
        return Refusal("join-for-other", f"{event.sender} cannot join for {target}")
    member = state.get((MEMBER, target))
    membership = None if member is None else member.membership
    if membership == "ban":  # step 5.3.3
        return Refusal("join-banned", f"{target} is banned")
    rule, version = join_rule_of(state), event.version
    if rule == "public":  # step 5.3.6
        return None
    restricted = allows_restricted_joins(rule, version)
    if restricted or rule == "invite" or allows_knocking(rule, version):
        # steps 5.3.4 and 5.3.5.1
        if membership in ("join", "invite"):
            return None
        return (
            _check_authorising_user(event, state, create)
            if restricted
            else Refusal("join-not-invited", f"{target} is not invited")
        )
    return Refusal("join-rule", f"nobody can join by the rule {rule!s:.50}")  # step 5.3.7


def _is_creators_first(event: Event, target: str, create: Event) -> bool:
    """Step 5.3.1: whether this is the creator's join directly after ``m.room.create``."""
    return event.prev_event_ids == (create.event_id,) and target == creator_of(create)


def _check_authorising_user(event: Event, state: StateEvents, create: Event) -> Refusal | None:
    """Step 5.3.5.2: the authorising user must be a member who may invite."""
    authorising_user = event.content.get(AUTHORISING_USER)
    if not isinstance(authorising_user, str):
        return Refusal("join-no-voucher", f"nobody vouches for {event.sender}")
    member = state.get((MEMBER, authorising_user))
    if member is None or member.membership != "join":
        return Refusal("join-voucher-not-joined", f"{authorising_user:.255} is no member")
    levels = power_levels_at(state, create)
    if levels.of(authorising_user) < levels.invite:
        return Refusal("join-voucher-level", f"{authorising_user:.255} lacks the power to invite")
    return None
