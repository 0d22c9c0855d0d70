"""What must be known of a room before a user of another server joins it by this one, as functions of a transaction."""

from __future__ import annotations

from collections.abc import Callable

from synrepl.core.errors import Refused
from synrepl.rooms import (
    Event,
    EventBuilder,
    EventDraft,
    Judged,
    StateKey,
    authorising_member,
    judge,
    rooms_that_authorise,
)
from synrepl.storage.database import Transaction
from synrepl.storage.federation.inbound_rooms import inbound_rooms
from synrepl.storage.rooms.persisting.read_view import read_view
from synrepl.storage.rooms.persisting.send_run import EventNotAllowed
from synrepl.storage.rooms.reading.client_rooms import (
    MAX_AUTHORISING,
    current_events,
    membership_of,
)
from synrepl.storage.rooms.states.state_handle import StoredState
from synrepl.storage.rooms.tables.numbers import require_room
from synrepl.storage.rooms.tables.pending_rows import array_text

#: The member of a restricted join's content that names who let the user in.
AUTHORISED_BY = "join_authorised_via_users_server"

_RULES = ("m.room.create", "m.room.power_levels", "m.room.join_rules")

#: Members of a template that the other server makes anew.
_LEFT_OUT = ("hashes", "signatures", "event_id")


class UnableToAuthoriseJoin(Refused):
    """this server cannot tell whether {user_id} may join {room_id}: it is not in all of the rooms whose members may; ask another server"""


class UnableToGrantJoin(Refused):
    """no user of this server may let anybody into room {room_id}; ask another server"""


def authorisation_of_join(
    txn: Transaction, room_id: str, user_id: str, server_name: str
) -> str | None:
    """The user of this server who lets a user of another server into a restricted room; None if that is not needed.

    Source: https://spec.matrix.org/v1.16/server-server-api/#restricted-rooms

    :raises UnknownRoom: the room is not stored
    :raises EventNotAllowed: the user is in none of the rooms whose members may join
    :raises UnableToAuthoriseJoin: :raises UnableToGrantJoin:
    """
    room = require_room(txn, room_id)
    if membership_of(txn, room.room_no, user_id) in ("join", "invite", "ban"):
        return None  # the rules decide without it
    state = current_events(txn, room_id, _RULES)
    allowing = [each for each in rooms_that_authorise(state) if "\0" not in each]
    if not allowing:
        return None
    own = [e for e in inbound_rooms(txn, allowing, server_name).values() if e.has_users]
    if not any(membership_of(txn, each.room_no, user_id) == "join" for each in own):
        if len(own) < len(set(allowing)):
            raise UnableToAuthoriseJoin(user_id=user_id, room_id=room_id)
        reason = f"{user_id} is in none of the rooms whose members may join"
        raise EventNotAllowed(reason=reason)
    found = authorising_member(state, _own_members(txn, room.room_no, state, server_name))
    if found is None:
        raise UnableToGrantJoin(room_id=room_id)
    return found


def _own_members(
    txn: Transaction, room_no: int, state: dict[StateKey, Event], server_name: str
) -> list[str]:
    """Members of this server: those who have a power level, and some others."""
    levels = state.get(("m.room.power_levels", ""))
    named = levels.content.get("users") if levels is not None else None
    create = state.get(("m.room.create", ""))
    powerful = [*(named if isinstance(named, dict) else ()), *([create.sender] if create else ())]
    txn.execute(
        "SELECT user_id FROM synrepl._memberships WHERE room_no = %s AND membership = 'join'"
        " AND substr(user_id, strpos(user_id, ':') + 1) = %s"
        " ORDER BY user_id <> ALL (%s::text[]), user_id LIMIT %s",
        (
            room_no,
            server_name,
            array_text([each for each in powerful if "\0" not in each]),
            MAX_AUTHORISING,
        ),
    )
    return [str(user_id) for (user_id,) in txn.fetchall()]


def build_template(
    txn: Transaction,
    room_id: str,
    builder: EventBuilder,
    draft: EventDraft,
    countersign: Callable[[Event], Event],
) -> dict[str, object]:
    """A membership event on the room as it is, for another server to sign; without hashes and signatures.

    :param builder: of the other server. The rules ask whether there is a signature, not whether it is right
    :param countersign: adds the signature of this server, which a restricted join has
    :raises UnknownRoom: :raises BadEvent: :raises NoCanonicalJson:
    :raises EventNotAllowed: the rules of the room would refuse it
    """
    _, view = read_view(txn, require_room(txn, room_id))
    event = countersign(builder.build(draft, view))
    judged: Judged[StoredState] = judge(event, view)
    reason = judged.refusal or judged.soft_failure
    if reason is not None:
        raise EventNotAllowed(reason=reason.sentence)
    return {name: each for name, each in event.fields.items() if name not in _LEFT_OUT}
