"""Whole states, each checked against its digest.

States of a room share most of their entries, and putting 10,000 entries together in Python takes longer than
reading them. So some states are kept, and a state is read as a change of one of these. Its digest follows from that of
the kept state and what differs, and is always compared with the digest that is stored with its group. So
what was kept of a group that is another one now is noticed, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from synrepl.rooms import StateKey
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.named_entries import (
    NO_ENTRIES,
    NamedEntries,
    NamedEntry,
    WholeState,
)
from synrepl.storage.rooms.states.state_digest import digest_of_total
from synrepl.storage.rooms.states.state_groups import (
    CorruptState,
    SlotChange,
    StoredGroup,
    chain_of,
    read_chains,
)
from synrepl.storage.rooms.tables.numbers import NumberWithoutRow, RoomRow

#: A state is read from one that is kept, with changes of at most this part of it on top.
_PART_ON_TOP = 4

_SLOT, _KEY, _EVENT_ID, _HASH = map(itemgetter, range(4))  # of a NamedEntry


def whole_state(
    txn: Transaction, names: NamedEntries, room: RoomRow, group: int
) -> dict[StateKey, str]:
    """A whole state, checked against its digest.

    :param names: what is cached about the room's states
    :raises CorruptState: :raises NumberWithoutRow: it is not what was stored
    :raises UnknownStateGroup: :raises BrokenChain: a group that it is stored with is not here
    """
    try:
        return _read(txn, names, room, group)
    except (CorruptState, NumberWithoutRow):
        # Numbers may have been given out again by a standby that was promoted before it had them.
        names.forget(room)
        return _read(txn, names, room, group)


def _read(txn: Transaction, names: NamedEntries, room: RoomRow, group: int) -> dict[StateKey, str]:
    kept = names.whole_states(room)
    stored = read_chains(txn, room.room_no, [group], kept.keys())
    base, above = NO_ENTRIES, list[StoredGroup]()
    for each in chain_of(group, stored):
        # Also the changes of a group that is kept itself, which add nothing unless its row was damaged since.
        above.append(each)
        below = each.group_no if each.group_no in kept else each.prev_group
        if below is not None and below in kept:
            base = kept[below]
            names.keep(room, below, base)
            break
    target = stored[group]
    cut = _cut(above, target.size)
    change = _merged(above)
    if cut < len(above):
        anchor = _anchor(txn, names, room, base, above[cut:])
        if anchor is not None:
            names.keep(room, above[cut].group_no, anchor)
            base, change = anchor, _merged(above[:cut])
    state = _applied(base, change, _named(txn, names, room, change))
    reason = "an entry is an event with another key" if state is None else _misfit(target, state)
    if state is None or reason is not None:
        raise CorruptState(group=group, room_no=room.room_no, reason=reason)
    return dict(state.ids)


def _cut(above: Sequence[StoredGroup], size: int) -> int:
    """How many groups at the top of a chain change little in all; the one below is worth being kept."""
    changes = 0
    for number, each in enumerate(above):
        changes += len(each.changes)
        if changes * _PART_ON_TOP > size:
            return number
    return len(above)


def _merged(chain: Sequence[StoredGroup]) -> dict[int, int | None]:
    """What groups of a chain change, the highest group given first."""
    change: dict[int, int | None] = {}
    for each in reversed(chain):
        change.update(each.changes)
    return change


def _anchor(
    txn: Transaction,
    names: NamedEntries,
    room: RoomRow,
    base: WholeState,
    chain: Sequence[StoredGroup],
) -> WholeState | None:
    """The state of the first group of a chain; None if it is damaged, which need not matter to those above."""
    change = _merged(chain)
    try:
        known = _named(txn, names, room, change)
    except NumberWithoutRow:
        return None
    state = _applied(base, change, known)
    return None if state is None or _misfit(chain[0], state) else state


def _named(
    txn: Transaction, names: NamedEntries, room: RoomRow, change: SlotChange
) -> Mapping[int, NamedEntry]:
    return names.read(txn, room, [number for number in change.values() if number is not None])


def _applied(
    base: WholeState, change: SlotChange, known: Mapping[int, NamedEntry]
) -> WholeState | None:
    """A state with a change; None if an event of the change has another key. Built without loops in Python."""
    if not change:
        return base
    removed = [slot for slot, number in change.items() if number is None]
    there = {slot: number for slot, number in change.items() if number is not None}
    new = list(map(known.__getitem__, there.values()))
    if list(map(_SLOT, new)) != list(there):
        return None
    old = list(filter(None, map(base.entries.get, change)))
    total = base.total + sum(map(_HASH, new)) - sum(map(_HASH, old))
    entries, ids = dict(base.entries), dict(base.ids)
    for slot in removed:
        if slot in entries:
            del ids[entries.pop(slot).key]
    entries.update(zip(there, new, strict=True))
    ids.update(zip(map(_KEY, new), map(_EVENT_ID, new), strict=True))
    return WholeState(entries, ids, total)


def _misfit(group: StoredGroup, state: WholeState) -> str | None:
    """In what a state differs from the one that was stored as a group."""
    if len(state.entries) != group.size:
        return f"it has {len(state.entries)} entries, and {group.size} were stored"
    if digest_of_total(state.total) != group.digest:
        return "its entries do not fit its digest"
    return None
