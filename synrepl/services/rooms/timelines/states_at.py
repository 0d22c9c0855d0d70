"""Takes current states of rooms back to what a vector covers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from synrepl.positions.vector import PositionVector
from synrepl.rooms import StateKey
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.timelines.room_entries import (
    Boundary,
    covered_tokens,
    ends,
    entries_before,
    state_changes_after,
)
from synrepl.storage.rooms.timelines.selected_entries import boundaries_after
from synrepl.storage.rooms.timelines.user_rooms import UserRoom

#: States by number of the room: the numbers of events by key.
States = Mapping[int, dict[StateKey, int]]


def take_back(
    txn: Transaction,
    rooms: Sequence[UserRoom],
    states: States,
    upto: PositionVector,
    is_wanted: Callable[[int, StateKey], bool],
) -> None:
    """Change current states to those at a vector; of a room that the user left, to that after the leave.

    :param states: what was read of the current states
    :param is_wanted: whether a key of a room, by number, is to be in its state
    """
    joined = [each for each in rooms if each.membership == "join"]
    left = [each for each in rooms if each.membership != "join"]
    boundaries: dict[int, Boundary] = {}
    if upto.highest > upto.linear or any(
        max(each.newest, each.state_only) > upto.linear for each in joined
    ):
        boundaries |= ends(txn, [each.room_no for each in joined], upto)
    boundaries |= boundaries_after(txn, [(each.room_no, each.stream_id) for each in left])
    if not boundaries:
        return
    changed = state_changes_after(
        txn,
        [
            (each.room_no, each.room_id, boundaries[each.room_no].stream_id - 1)
            for each in rooms
            if each.room_no in boundaries
        ],
    )
    last = {each.room_no: each.stream_id for each in left}
    tokens = {token for each in changed.values() for token, _, _ in each.changes}
    state_only = {each.room_no: each.state_only for each in rooms}
    covered = covered_tokens(txn, tokens | set(state_only.values()), upto)
    wanted: list[tuple[int, int, StateKey]] = []
    for number, each in changed.items():
        highest = last.get(number, upto.highest)
        kept = {
            key: event_no
            for token, key, event_no in each.changes
            if token in covered and token <= highest
        }
        keys = {key for _, key, _ in each.changes}
        if each.is_many or state_only[number] not in covered or state_only[number] > highest:
            keys |= states[number].keys()
        for key in keys:
            if not is_wanted(number, key):
                continue
            if key in kept:
                _set(states[number], key, kept[key])
            else:
                wanted.append((number, boundaries[number].group_before, key))
    for (number, key), event_no in entries_before(txn, wanted).items():
        _set(states[number], key, event_no)


def _set(state: dict[StateKey, int], key: StateKey, event_no: int | None) -> None:
    if event_no is None:
        state.pop(key, None)
    else:
        state[key] = event_no
