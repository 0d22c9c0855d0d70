"""Memberships of users of this server in rooms that this server is not in: invites, knocks, and how they ended.

Such a room has a number, and nothing else is known of it but what its server chose to show. The membership is told to
followers like any other, so that the user's clients hear of it. It counts as long as the user has no later one in
``_memberships``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from synrepl.core.tokens import Token
from synrepl.rooms import Event
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.tables.numbers import (
    OtherRoomVersion,
    find_room,
    lock_room,
    make_room,
    slots_of,
)
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.caches import CACHES, CachesRow
from synrepl.streams.synapse.events import EVENTS, EventRow, StateRow

#: The streams that a membership is told in.
REMOTE_MEMBERSHIP_STREAMS: tuple[Stream, ...] = (EVENTS, CACHES)

_MEMBER = "m.room.member"


class RemoteMembership(NamedTuple):
    """A membership in a room that this server is not in.

    :ivar event: the membership event of a user of this server
    :ivar stripped_state: what is shown of the room: state events in stripped form, as JSON
    """

    event: Event
    stripped_state: Sequence[bytes]


def write_remote_membership(
    txn: Transaction, outbox: Outbox, membership: RemoteMembership, now_ms: int
) -> None:
    """Store a membership, in the place of an earlier one of the user in the room.

    :raises OtherRoomVersion: the room is known with another version
    """
    event = membership.event
    user_id, kind = str(event.state_key), str(event.membership)
    found = find_room(txn, event.room_id)
    version = event.version.name
    room_no = make_room(txn, event.room_id, version) if found is None else found.room_no
    room = lock_room(txn, room_no)
    if room.version != version:
        raise OtherRoomVersion(room_id=event.room_id, stored=room.version, given=version)
    key = _MEMBER, user_id
    if key not in slots_of(txn, room_no, [key]):
        txn.execute(
            "INSERT INTO synrepl._room_keys (room_no, slot, type, state_key) VALUES (%s, %s, %s, %s)",
            (room_no, room.slots, *key),
        )
        txn.execute(
            "UPDATE synrepl._rooms SET slots = slots + 1, revision = revision + 1 WHERE room_no = %s",
            (room_no,),
        )
    outbox.append(
        EVENTS,
        [
            EventRow(event.event_id, event.room_id, *key, None, None, kind, False, True),
            StateRow(event.room_id, *key, event.event_id),
        ],
    )
    outbox.append(CACHES, [CachesRow("cs_cache_fake", [event.room_id, user_id], now_ms)])
    stripped = b"[%b]" % b",".join(membership.stripped_state)

    def write(txn: Transaction, tokens: Mapping[str, Sequence[Token]]) -> None:
        (token,) = tokens[EVENTS.name]
        txn.execute(
            "INSERT INTO synrepl._remote_memberships AS m"
            " (user_id, room_no, stream_id, membership, event_id, raw, stripped_state)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (user_id, room_no) DO UPDATE"
            " SET stream_id = excluded.stream_id, membership = excluded.membership,"
            "  event_id = excluded.event_id, raw = excluded.raw,"
            "  stripped_state = excluded.stripped_state",
            (user_id, room_no, EVENTS.stream_id(token), kind, event.event_id, event.raw, stripped),
        )

    outbox.after_reserving(write)


def remote_membership(txn: Transaction, user_id: str, room_id: str) -> tuple[str, bytes] | None:
    """The membership of a user in a room that this server is not in, and its event; None if there is none that counts."""
    txn.execute(
        "SELECT o.membership, o.raw FROM synrepl._remote_memberships o JOIN synrepl._rooms r USING (room_no)"
        " WHERE o.user_id = %s AND r.room_id = %s AND NOT EXISTS ("
        "  SELECT FROM synrepl._memberships m WHERE m.room_no = o.room_no AND m.user_id = o.user_id"
        "  AND m.stream_id > o.stream_id)",
        (user_id.replace("\0", ""), room_id.replace("\0", "")),
    )
    found = txn.fetchone_or_none()
    return None if found is None else (str(found[0]), bytes(found[1]))


_STATES = msgspec.json.Decoder(list[msgspec.Raw])


def shown_states(
    txn: Transaction, user_id: str, room_nos: Collection[int]
) -> dict[int, tuple[bytes, Sequence[bytes]]]:
    """By room, the membership event of a user and what is shown of the room, as JSON."""
    if not room_nos:
        return {}
    txn.execute(
        "SELECT room_no, raw, stripped_state FROM synrepl._remote_memberships"
        " WHERE user_id = %s AND room_no = ANY (%s::int[])",
        (user_id, array_text(room_nos)),
    )
    return {
        int(room_no): (bytes(raw), [bytes(each) for each in _STATES.decode(bytes(stripped))])
        for room_no, raw, stripped in txn.fetchall()
    }
