"""Rules for ``m.room.member``: invite, leave, kick, unban, ban, knock and join.

Source: step 5 of https://spec.matrix.org/v1.16/rooms/v12/#authorization-rules. It is step 4
in versions 6 to 11. Knocking exists from version 7 on, restricted joins from version 8.
"""

from __future__ import annotations

from synrepl.rooms.auth.create import creator_of
from synrepl.rooms.auth.power_levels import power_levels_at
from synrepl.rooms.auth.third_party import check_third_party_invite
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import AUTHORISING_USER, JOIN_RULES_KEY, MEMBER
from synrepl.rooms.identifiers import is_user_id
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.state import StateEvents
from synrepl.rooms.versions import RoomVersion


def membership_at(state: StateEvents, user: str) -> object:
    """A user's membership in a state; None when the state has no event for the user."""
    member = state.get((MEMBER, user))
    return None if member is None else member.membership


def check_complete(event: Event) -> Refusal | None:
    """Check step 5.1, which needs no state."""
    if event.state_key is None or "membership" not in event.content:
        return Refusal("member-incomplete", "m.room.member lacks its state_key or membership")
    return None


def check_member(event: Event, state: StateEvents, create: Event) -> Refusal | None:
    """Check step 5, by membership."""
    refusal = check_complete(event)
    if refusal is not None:
        return refusal
    target = event.state_key
    if not is_user_id(target):
        return Refusal("member-no-user", f"{target} is no user ID")
    match event.membership:
        case "join":
            return check_join(event, target, state, create)
        case "invite":
            if "third_party_invite" in event.content:
                return check_third_party_invite(event, target, state)
            return _check_invite(event, target, state, create)
        case "leave" if event.sender == target:
            return _check_leave(event, state)
        case "leave":
            return _check_kick(event, target, state, create)
        case "ban":
            return _check_ban(event, target, state, create)
        case "knock" if event.version.knocking:
            return _check_knock(event, target, state)
        case other:  # step 5.8
            return Refusal("unknown-membership", f"there is no membership {other!s:.50}")


def check_joined(event: Event, state: StateEvents) -> Refusal | None:
    """Check steps 6, 5.4.2, 5.5.2 and 5.6.1: the sender must be a member."""
    member = state.get((MEMBER, event.sender))
    if member is None or member.membership != "join":
        return Refusal("sender-not-joined", f"{event.sender} is no member")
    return None


def _check_invite(event: Event, target: str, state: StateEvents, create: Event) -> Refusal | None:
    """Steps 5.4.2 to 5.4.5."""
    refusal = check_joined(event, state)
    if refusal is not None:
        return refusal
    membership = membership_at(state, target)
    if membership == "join":
        return Refusal("invite-joined", f"{target} is a member already")
    if membership == "ban":
        return Refusal("invite-banned", f"{target} is banned")
    levels = power_levels_at(state, create)
    if levels.of(event.sender) < levels.invite:
        return Refusal("invite-level", f"{event.sender} lacks the power to invite")
    return None


def _check_leave(event: Event, state: StateEvents) -> Refusal | None:
    """Step 5.5.1: only a user who is joined, invited or has knocked can leave."""
    membership = membership_at(state, event.sender)
    if membership in ("join", "invite") or (membership == "knock" and event.version.knocking):
        return None
    return Refusal("leave-not-in", f"{event.sender} is not there to leave")


def _check_kick(event: Event, target: str, state: StateEvents, create: Event) -> Refusal | None:
    """Steps 5.5.2 to 5.5.5; unbanning takes the power to ban as well."""
    refusal = check_joined(event, state)
    if refusal is not None:
        return refusal
    levels = power_levels_at(state, create)
    power = levels.of(event.sender)
    if membership_at(state, target) == "ban" and power < levels.ban:
        return Refusal("unban-level", f"{event.sender} lacks the power to unban")
    if power < levels.kick:
        return Refusal("kick-level", f"{event.sender} lacks the power to kick")
    return _is_above(event.sender, power, target, levels.of(target))


def _check_ban(event: Event, target: str, state: StateEvents, create: Event) -> Refusal | None:
    """Step 5.6."""
    refusal = check_joined(event, state)
    if refusal is not None:
        return refusal
    levels = power_levels_at(state, create)
    power = levels.of(event.sender)
    if power < levels.ban:
        return Refusal("ban-level", f"{event.sender} lacks the power to ban")
    return _is_above(event.sender, power, target, levels.of(target))


def _is_above(sender: str, power: float, target: str, target_power: float) -> Refusal | None:
    """Last part of steps 5.5.4 and 5.6.2: the target must have less power than the sender."""
    if target_power >= power:
        return Refusal("target-level", f"{target} has power {target_power}, {sender} {power}")
    return None


def _check_knock(event: Event, target: str, state: StateEvents) -> Refusal | None:
    """Step 5.7."""
    rule = join_rule_of(state)
    if not allows_knocking(rule, event.version):
        return Refusal("knock-rule", f"nobody can knock by the rule {rule!s:.50}")
    if event.sender != target:
        return Refusal("knock-for-other", f"{event.sender} cannot knock for {target}")
    membership = membership_at(state, target)
    if membership in ("ban", "invite", "join"):
        return Refusal("knock-needless", f"{target} cannot knock with membership {membership}")
    return None


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
    membership = membership_at(state, target)
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
    if membership_at(state, authorising_user) != "join":
        return Refusal("join-voucher-not-joined", f"{authorising_user:.255} is no member")
    levels = power_levels_at(state, create)
    if levels.of(authorising_user) < levels.invite:
        return Refusal("join-voucher-level", f"{authorising_user:.255} lacks the power to invite")
    return None
