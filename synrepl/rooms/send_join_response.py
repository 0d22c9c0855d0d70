"""Whether a ``send_join`` response with partial state is complete enough to participate in the room.

Source: the proposal on faster joins ("the first four of these should be present in the state before J"), and
https://spec.matrix.org/v1.16/server-server-api/#put_matrixfederationv2send_joinroomideventid, where a
response that omits members must name the servers in the room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from synrepl.core.errors import InputError
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import CREATE, JOIN_RULES, POWER_LEVELS
from synrepl.rooms.judged import Judged

#: Types that authorise nearly every event. Only memberships may be omitted.
ESSENTIAL = (CREATE, POWER_LEVELS, JOIN_RULES)


class IncompleteAnswer(InputError):
    """the answer to the join of room {room_id} {reason}; drop all of it, and join through another server"""


def check_send_join_response(
    join: Event, state: Collection[Event], auth_chain: Iterable[Event], servers: Collection[str]
) -> None:
    """Refuse a response that lacks essential state.

    A room always has ``m.room.create``. It may never have had power levels or join rules; but once an event
    of the response has some in its auth chain, every later state has some.

    :raises IncompleteAnswer: essential state, or the list of servers, is missing
    """
    here = _kinds(state)
    there = here | _kinds(auth_chain) | {CREATE}
    missing = [kind for kind in ESSENTIAL if kind in there and kind not in here]
    if missing:
        raise IncompleteAnswer(room_id=join.room_id, reason=f"lacks {', '.join(missing)}")
    if not servers:
        raise IncompleteAnswer(
            room_id=join.room_id, reason="leaves out members, and names no servers that are in it"
        )


def check_essential_state_accepted(room_id: str, state: Iterable[Judged[Any]]) -> None:
    """Refuse a response whose essential state was rejected, and so is not part of the state.

    :param state: the verdicts on the events of the state
    :raises IncompleteAnswer: essential state was rejected
    """
    for judged in state:
        event, refusal = judged.event, judged.refusal
        if refusal is not None and event.type in ESSENTIAL and event.state_key == "":
            reason = (
                f"is of no use: its {event.type} {event.event_id} is rejected ({refusal.sentence})"
            )
            raise IncompleteAnswer(room_id=room_id, reason=reason)


def _kinds(events: Iterable[Event]) -> set[str]:
    """The essential types among some events."""
    return {event.type for event in events if event.state_key == "" and event.type in ESSENTIAL}
