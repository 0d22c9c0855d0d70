"""Proves that a large state is the one that was stored, without its names in memory."""

from __future__ import annotations

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.state_digest import digest_of_total, entry_hash
from synrepl.storage.rooms.states.state_groups import CorruptState, read_chains, state_in
from synrepl.storage.rooms.tables.numbers import RoomRow
from synrepl.storage.rooms.tables.pending_rows import array_text


def prove_group(txn: Transaction, room: RoomRow, group: int) -> None:
    """Read a state with the keys and IDs of its events, and compare it with its digest.

    :raises CorruptState: it is another one
    :raises UnknownStateGroup: :raises BrokenChain: it cannot be put together
    """
    known = read_chains(txn, room.room_no, [group])
    state = state_in(group, known)
    txn.execute(
        "SELECT s.slot, k.type, k.state_key, e.event_id"
        " FROM unnest(%s::int[], %s::bigint[]) AS s (slot, event_no)"
        " JOIN synrepl._room_keys k ON k.room_no = %s AND k.slot = s.slot"
        " JOIN synrepl._room_events e ON e.event_no = s.event_no AND e.room_no = k.room_no"
        "  AND e.slot = s.slot",
        (array_text(list(state)), array_text(list(state.values())), room.room_no),
    )
    total = count = 0
    for _, kind, state_key, event_id in txn:
        total += entry_hash(room.digest_key, ((kind, state_key), event_id))
        count += 1
    stored, reason = known[group], None
    if count != len(state) or count != stored.size:
        reason = (
            f"{count} of its {len(state)} entries are state events, and {stored.size} were stored"
        )
    elif digest_of_total(total) != stored.digest:
        reason = "its entries do not fit its digest"
    if reason is not None:
        raise CorruptState(group=group, room_no=room.room_no, reason=reason)
