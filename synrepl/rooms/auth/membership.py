"""Rules for ``m.room.member``: invite, leave, kick, unban, ban and knock; joins are in ``joins``.

Source: step 5 of https://spec.matrix.org/v1.16/rooms/v12/#authorization-rules. It is step 4
in versions 6 to 11. Knocking exists from version 7 on.
"""

from __future__ import annotations

from synrepl.rooms.auth.joins import allows_knocking, check_join, join_rule_of
from synrepl.rooms.auth.power_levels import power_levels_at
from synrepl.rooms.auth.third_party import check_third_party_invite
from synrepl.rooms.auth.users import is_user_id
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import MEMBER
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.state import StateEvents


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
