"""Which rule allows an event that the authorization rules do not refuse.

The rules (:mod:`~synrepl.rooms.auth.authorise`) say why an event is refused. This says, for explanations, by what
an event that passed them is allowed.
"""

from __future__ import annotations

from typing import NamedTuple

from synrepl.rooms.auth.membership import allows_restricted_joins, join_rule_of, membership_at
from synrepl.rooms.auth.power_levels import power_levels_at
from synrepl.rooms.auth.third_party import token_of
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import (
    ALIASES,
    AUTHORISING_USER,
    CREATE,
    CREATE_KEY,
    MEMBER,
    THIRD_PARTY_INVITE,
)
from synrepl.rooms.identifiers import server_part
from synrepl.rooms.state import StateEvents


class Permission(NamedTuple):
    """Why an event is allowed: a stable code, and a sentence."""

    code: str
    sentence: str


def permission_of(event: Event, state: StateEvents) -> Permission:
    """The rule that allows an event at a state.

    :param state: as for :func:`~synrepl.rooms.auth.authorise.authorise`, which must not refuse the event there
    """
    create = state.get(CREATE_KEY)
    if event.type == CREATE or create is None:
        return Permission("create", "m.room.create begins the room")
    if event.type == MEMBER and event.state_key is not None:
        return _membership(event, event.state_key, state, create)
    if event.type == ALIASES and event.version.aliases_are_authorised:
        server = server_part(event.sender)
        return Permission("own-aliases", f"{server} sets its own aliases")
    levels = power_levels_at(state, create)
    power = levels.of(event.sender)
    if event.type == THIRD_PARTY_INVITE:
        return Permission("invite-level", _has(event.sender, power, levels.invite, "to invite"))
    return Permission("level", _has(event.sender, power, levels.to_send(event), "to send it"))


def _has(user: str, power: float, needed: float, what: str) -> str:
    return f"{user} is in the room and has power {power:g}; it takes {needed:g} {what}"


def _membership(event: Event, target: str, state: StateEvents, create: Event) -> Permission:
    """The same for an ``m.room.member``."""
    sender, membership = event.sender, event.membership
    levels = power_levels_at(state, create)
    before = membership_at(state, target)
    if membership == "join":
        return _join(event, target, state, create)
    if membership == "invite":
        if token_of(event) is not None:
            return Permission("third-party-invite", f"a third-party invite of {target} is signed")
        return Permission(
            "invite-level", _has(sender, levels.of(sender), levels.invite, "to invite")
        )
    if membership == "knock":
        return Permission(
            "knock-rule", f"the join rule {join_rule_of(state)!s:.50} allows to knock"
        )
    if membership == "ban":
        return Permission("ban-level", _has(sender, levels.of(sender), levels.ban, "to ban"))
    if sender == target:
        return Permission("own-leave", f"{target} ends its own membership {before!s:.50}")
    if before == "ban":
        return Permission("unban-level", _has(sender, levels.of(sender), levels.ban, "to unban"))
    return Permission("kick-level", _has(sender, levels.of(sender), levels.kick, "to kick"))


def _join(event: Event, target: str, state: StateEvents, create: Event) -> Permission:
    if event.prev_event_ids == (create.event_id,) and target == create.sender:
        return Permission("creators-join", f"{target} created the room and joins first")
    rule, before = join_rule_of(state), membership_at(state, target)
    if rule == "public":
        return Permission("public", "the join rule is public")
    if before in ("join", "invite"):
        return Permission("was-there", f"{target} had membership {before}")
    if allows_restricted_joins(rule, event.version):
        authorising_user = event.content.get(AUTHORISING_USER)
        return Permission("vouched-for", f"{authorising_user!s:.255} vouches for {target}")
    return Permission("join-rule", f"the join rule {rule!s:.50} allows it")
