"""Who may authorise a restricted join, for servers that let their own users join.

Source: https://spec.matrix.org/v1.16/client-server-api/#restricted-rooms
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from synrepl.rooms.auth.membership import allows_restricted_joins, join_rule_of
from synrepl.rooms.auth.power_levels import power_levels_at
from synrepl.rooms.event_types import CREATE_KEY, JOIN_RULES_KEY
from synrepl.rooms.state import StateEvents


def rooms_that_authorise(state: StateEvents) -> Sequence[str]:
    """The rooms whose members may join a restricted room; none if the room is not restricted.

    :param state: its ``m.room.create`` and ``m.room.join_rules`` at least
    """
    rules = state.get(JOIN_RULES_KEY)
    if rules is None or not allows_restricted_joins(join_rule_of(state), rules.version):
        return ()
    allow = rules.content.get("allow")
    conditions = (
        [each for each in allow if isinstance(each, dict)] if isinstance(allow, list) else []
    )
    rooms = [each.get("room_id") for each in conditions if each.get("type") == "m.room_membership"]
    return [each for each in rooms if isinstance(each, str)]


def authorising_member(state: StateEvents, members: Collection[str]) -> str | None:
    """One of some members who may invite, the most powerful first; None if none of them may.

    :param state: the room's ``m.room.create`` and ``m.room.power_levels`` at least
    """
    create = state.get(CREATE_KEY)
    if create is None or not members:
        return None
    levels = power_levels_at(state, create)
    user = max(sorted(members), key=levels.of)
    return user if levels.of(user) >= levels.invite else None
