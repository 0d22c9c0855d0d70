"""What must be known of a room before a user's request changes it, as functions of a transaction."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.core.errors import Refused
from synrepl.rooms import (
    Event,
    EventBuilder,
    EventDraft,
    Judged,
    StateKey,
    authorising_member,
    judge,
    room_version,
    rooms_that_authorise,
)
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.persisting.read_view import read_view
from synrepl.storage.rooms.persisting.send_run import EventNotAllowed
from synrepl.storage.rooms.states.state_handle import StoredState
from synrepl.storage.rooms.tables.events import events_by_id, parsed_events
from synrepl.storage.rooms.tables.heads import current_state
from synrepl.storage.rooms.tables.numbers import require_room
from synrepl.storage.rooms.tables.pending_rows import array_text

#: Members of this server that are considered as those who authorise a restricted join.
MAX_AUTHORISING = 100

_RULES = ("m.room.create", "m.room.power_levels", "m.room.join_rules")


class StillInRoom(Refused):
    """{user_id} is {membership!r} in room {room_id}; leave it first"""


class JoinFacts(NamedTuple):
    """What a join depends on.

    :ivar membership: of the user now; None without any
    :ivar authorised_by: the user of this server who authorises the join, if it needs that and may have it
    """

    membership: str | None
    authorised_by: str | None


def membership_of(txn: Transaction, room_no: int, user_id: str) -> str | None:
    """The membership of a user in the current state; None without any."""
    if "\0" in user_id:
        return None
    txn.execute(
        "SELECT membership FROM synrepl._memberships WHERE room_no = %s AND user_id = %s",
        (room_no, user_id),
    )
    found = txn.fetchone_or_none()
    return None if found is None else str(found[0])


def current_events(txn: Transaction, room_id: str, types: tuple[str, ...]) -> dict[StateKey, Event]:
    """The events of the current state with some types.

    :raises UnknownRoom: the room is not stored
    """
    room = require_room(txn, room_id)
    ids = [each.event_id for each in current_state(txn, room.room_no, types)]
    rows = list(events_by_id(txn, ids).values())
    events = parsed_events(txn, room_version(room.version), rows).values()
    return {(each.type, each.state_key or ""): each for each in events}


def join_facts(txn: Transaction, room_id: str, user_id: str, server_name: str) -> JoinFacts:
    """What a join depends on.

    A restricted room is joined with the authorisation of a member of this server.

    :raises UnknownRoom: the room is not stored
    """
    room = require_room(txn, room_id)
    membership = membership_of(txn, room.room_no, user_id)
    if membership in ("join", "invite", "ban"):
        return JoinFacts(membership, None)
    state = current_events(txn, room_id, _RULES)
    allowing = [each for each in rooms_that_authorise(state) if "\0" not in each]
    if not allowing or not _is_in_any(txn, user_id, allowing):
        return JoinFacts(membership, None)
    levels = state.get(("m.room.power_levels", ""))
    named = levels.content.get("users") if levels is not None else None
    powerful = list(named) if isinstance(named, dict) else []
    create = state.get(("m.room.create", ""))
    creators = [] if create is None else [create.sender]
    txn.execute(
        "(SELECT user_id FROM synrepl._memberships WHERE room_no = %s AND membership = 'join'"
        "  AND user_id = ANY (%s::text[]) AND substr(user_id, strpos(user_id, ':') + 1) = %s LIMIT %s)"
        " UNION (SELECT user_id FROM synrepl._memberships WHERE room_no = %s AND membership = 'join'"
        "  AND substr(user_id, strpos(user_id, ':') + 1) = %s LIMIT %s)",
        (
            room.room_no,
            array_text([each for each in (*powerful, *creators) if "\0" not in each]),
            server_name,
            MAX_AUTHORISING,
            room.room_no,
            server_name,
            MAX_AUTHORISING,
        ),
    )
    members = [str(member) for (member,) in txn.fetchall()]
    return JoinFacts(membership, authorising_member(state, members))


def check_allowed(
    txn: Transaction, room_id: str, builder: EventBuilder, draft: EventDraft
) -> str | None:
    """Check whether an event would be allowed now, without sending it.

    :returns: a forward extremity of the room
    :raises UnknownRoom: :raises BadEvent: :raises NoCanonicalJson:
    :raises EventNotAllowed: it would be refused
    """
    _, view = read_view(txn, require_room(txn, room_id))
    judged: Judged[StoredState] = judge(builder.build(draft, view), view)
    reason = judged.refusal or judged.soft_failure
    if reason is not None:
        raise EventNotAllowed(reason=reason.sentence)
    return next(iter(judged.event.prev_event_ids), None)


def forget_room(txn: Transaction, room_id: str, user_id: str) -> None:
    """Remember that a user does not want to see a room any more, until the user's membership changes.

    :raises UnknownRoom: :raises StillInRoom: the user is joined or invited, or has knocked
    """
    room = require_room(txn, room_id)
    membership = membership_of(txn, room.room_no, user_id)
    if membership not in (None, "leave", "ban"):
        raise StillInRoom(user_id=user_id, membership=membership, room_id=room_id)
    txn.execute(
        "INSERT INTO synrepl._forgotten_rooms (user_id, room_no, event_no)"
        " SELECT user_id, room_no, event_no FROM synrepl._memberships"
        " WHERE room_no = %s AND user_id = %s"
        " ON CONFLICT (user_id, room_no) DO UPDATE SET event_no = excluded.event_no",
        (room.room_no, user_id),
    )


def _is_in_any(txn: Transaction, user_id: str, room_ids: list[str]) -> bool:
    txn.execute(
        "SELECT 1 FROM synrepl._memberships m JOIN synrepl._rooms r USING (room_no)"
        " WHERE m.user_id = %s AND m.membership = 'join' AND r.room_id = ANY (%s::text[]) LIMIT 1",
        (user_id, array_text(room_ids)),
    )
    return txn.fetchone_or_none() is not None
