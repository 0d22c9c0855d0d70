"""Whether what a server answered to a partial join is enough to be in the room with.

Source: the seed on faster joins ("the first four of these should be present in the state before J"), and
https://spec.matrix.org/v1.16/server-server-api/#put_matrixfederationv2send_joinroomideventid, where an
answer that leaves out members has to name the servers in the room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from synrepl.core.errors import InputError
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import CREATE, JOIN_RULES, POWER_LEVELS
from synrepl.rooms.judged import Judged

#: What authorises next to everything. Only of memberships may a part be left out.
ESSENTIAL = (CREATE, POWER_LEVELS, JOIN_RULES)


class IncompleteAnswer(InputError):
    """the answer to the join of room {room_id} {reason}; drop all of it, and join through another server"""


def check_send_join_response(
    join: Event, state: Collection[Event], auth_chain: Iterable[Event], servers: Collection[str]
) -> None:
    """Refuse an answer that leaves out what there is.

    A room always has its creation. Power levels and join rules it may never have had; but where
    an event of the answer leans on some, they are in every later state, in this or in a newer version.

    :raises IncompleteAnswer:
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
    """Refuse an answer in which what it cannot do without is rejected, and so would be left out.

    :param state: what became of the events of the state
    :raises IncompleteAnswer:
    """
    for judged in state:
        event, refusal = judged.event, judged.refusal
        if refusal is not None and event.type in ESSENTIAL and event.state_key == "":
            reason = (
                f"is of no use: its {event.type} {event.event_id} is rejected ({refusal.sentence})"
            )
            raise IncompleteAnswer(room_id=room_id, reason=reason)


def _kinds(events: Iterable[Event]) -> set[str]:
    """Which of the essential entries there are."""
    return {event.type for event in events if event.state_key == "" and event.type in ESSENTIAL}
