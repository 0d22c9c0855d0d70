"""State groups: immutable rows, each a delta to an earlier group.

Here, a state is a mapping of slots to event numbers. :mod:`synrepl.rooms` decides which delta to store; it never
looks into keys or event IDs, so numbers take their places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from struct import pack, unpack_from
from typing import Any, NamedTuple, cast

from synrepl.core.errors import StorageError
from synrepl.rooms import (
    BrokenChain,
    Delta,
    SkipLevels,
    StateGroup,
    StateKey,
    UnknownStateGroup,
    lookup_change,
    run,
)
from synrepl.storage.database import PlannedOnce, Record, Script, Transaction
from synrepl.storage.rooms.states.state_digest import digest_of
from synrepl.storage.rooms.tables.numbers import RoomRow, event_ids_of, keys_of
from synrepl.storage.rooms.tables.pending_rows import RoomTable, array_text

#: Event numbers by slot; as a change, None where an entry is removed.
SlotState = Mapping[int, int]
SlotChange = Mapping[int, int | None]


class CorruptState(StorageError):
    """state group {group} of room {room_no} is not what was stored: {reason}; it is not served; run 'synrepl rooms verify' to see what else is damaged"""


class NumberTooLarge(StorageError):
    """entry {number} of slot {slot} cannot be part of a state of room {room_no}: a room has at most 8,388,608 state keys, and a database 1,099,511,627,775 events"""


class StoredGroup(NamedTuple):
    """A row of ``_state_groups``.

    :ivar prev_group: the group that it is a delta to; None when it is stored in full
    :ivar size: number of entries of the state
    :ivar place: in its line of skip levels
    :ivar digest: of the entries of the state
    :ivar changes: what is new or changed, and (None) what ``prev_group`` has and this one has not
    """

    group_no: int
    prev_group: int | None
    room_no: int
    size: int
    place: int
    digest: bytes
    changes: SlotChange


GROUPS_TABLE = RoomTable(
    "synrepl._state_groups", "group_no, prev_group, room_no, size, place, digest, changes"
)

_COLUMNS = "g.group_no, g.prev_group, g.room_no, g.size, g.place, g.digest, g.changes"

#: Bits of an event number in a packed entry, which leaves 23 for its slot.
_EVENT_BITS = 40
_EVENT_MASK = (1 << _EVENT_BITS) - 1
_MAX_SLOT = (1 << 63 - _EVENT_BITS) - 1

#: How far back the deltas of groups reach.
LEVELS = SkipLevels()


def group_row(group: StoredGroup) -> tuple[object, ...]:
    """A row of :data:`GROUPS_TABLE`.

    :raises NumberTooLarge: a slot or an event number does not fit
    """
    return (*group[:6], packed_changes(group.room_no, group.changes))


def packed_changes(room_no: int, change: SlotChange) -> bytes:
    """A change as ``_state_groups.changes`` has it: sorted numbers of 64 bits, each a slot and an event number.

    :raises NumberTooLarge: a slot or an event number does not fit
    """
    numbers = []
    for slot, number in change.items():
        if not 0 <= slot <= _MAX_SLOT or not (number is None or 0 < number <= _EVENT_MASK):
            raise NumberTooLarge(slot=slot, number=number, room_no=room_no)
        numbers.append(slot << _EVENT_BITS | (number or 0))
    numbers.sort()
    return pack(f">{len(numbers)}q", *numbers)


def unpacked_changes(packed: bytes) -> dict[int, int | None]:
    """What :func:`packed_changes` made of a change."""
    numbers = unpack_from(f">{len(packed) // 8}q", packed)
    return {each >> _EVENT_BITS: each & _EVENT_MASK or None for each in numbers}


# PostgreSQL cannot know how few groups are in a chain, and would read all groups of all rooms for each step.
# What has an OFFSET is run for each group, by its number.
_CHAINS = Script(
    [
        PlannedOnce(
            "WITH RECURSIVE chain (group_no, prev_group, place) AS ("
            " SELECT group_no, prev_group, place FROM synrepl._state_groups"
            "  WHERE room_no = %(room)s AND group_no = ANY (%(groups)s::bigint[])"
            " UNION SELECT g.group_no, g.prev_group, g.place FROM chain c CROSS JOIN LATERAL ("
            "  SELECT g.group_no, g.prev_group, g.place FROM synrepl._state_groups g"
            "  WHERE g.room_no = %(room)s AND g.group_no = c.prev_group"
            "  AND g.group_no <> ALL (%(known)s::bigint[]) OFFSET 0) AS g WHERE g.place < c.place)"
            " SELECT g.* FROM (SELECT DISTINCT group_no FROM chain) c CROSS JOIN LATERAL ("
            f"  SELECT {_COLUMNS} FROM synrepl._state_groups g"
            "  WHERE g.room_no = %(room)s AND g.group_no = c.group_no OFFSET 0) AS g"
        )
    ]
)


def read_chains(
    txn: Transaction, room_no: int, groups: Collection[int], known: Collection[int] = ()
) -> dict[int, StoredGroup]:
    """Groups with the whole chain of each, in one statement; those that are not here are left out.

    A chain ends where ``place`` does not become smaller, so a circle in a damaged table ends, too.

    :param known: groups at which chains end; they are read only if they are among ``groups``
    """
    if not groups:
        return {}
    params = {"room": room_no, "groups": array_text(groups), "known": array_text(known)}
    txn.execute(_CHAINS, params)
    return {group.group_no: group for group in map(_group, txn.fetchall())}


def _group(row: Record) -> StoredGroup:
    return StoredGroup._make((*row[:5], bytes(row[5]), unpacked_changes(row[6])))


def chain_of(group: int, known: Mapping[int, StoredGroup]) -> Iterator[StoredGroup]:
    """A group, the group that it is a delta to, and so on.

    :raises UnknownStateGroup: it, or one of its chain, is not known
    :raises BrokenChain: see :class:`~synrepl.rooms.BrokenChain`
    """
    at: int | None = group
    above: StoredGroup | None = None
    while at is not None:
        stored = known.get(at)
        if stored is None:
            raise UnknownStateGroup(group=at)
        if above is not None and stored.place >= above.place:
            raise BrokenChain(group=above.group_no, prev=at)
        yield stored
        above, at = stored, stored.prev_group


def chains_of_groups(
    groups: Iterable[int], known: Mapping[int, StoredGroup]
) -> dict[int, StoredGroup]:
    """Groups with the whole chain of each; what several chains share is looked at once.

    :raises UnknownStateGroup: :raises BrokenChain: see :func:`chain_of`
    """
    found: dict[int, StoredGroup] = {}
    for group in groups:
        for stored in chain_of(group, known):
            if stored.group_no in found:
                break
            found[stored.group_no] = stored
    return found


def state_in(group: int, known: Mapping[int, StoredGroup]) -> dict[int, int]:
    """The state of a group from its chain.

    :raises UnknownStateGroup: :raises BrokenChain: see :func:`chain_of`
    """
    state: dict[int, int | None] = {}
    for stored in reversed(list(chain_of(group, known))):
        state.update(stored.changes)
    return {slot: number for slot, number in state.items() if number is not None}


def read_slot_states(
    txn: Transaction, room_no: int, groups: Collection[int]
) -> dict[int, dict[int, int]]:
    """Whole states in numbers, without a check of their digests.

    :raises UnknownStateGroup: :raises BrokenChain: see :func:`chain_of`
    :raises CorruptState: a state does not have the size that was stored
    """
    known = read_chains(txn, room_no, groups)
    states: dict[int, dict[int, int]] = {}
    for group in groups:
        state = states[group] = state_in(group, known)
        if len(state) != known[group].size:
            reason = f"it has {len(state)} entries, and {known[group].size} were stored"
            raise CorruptState(group=group, room_no=room_no, reason=reason)
    return states


def read_states(
    txn: Transaction, room: RoomRow, groups: Collection[int]
) -> dict[int, dict[StateKey, str]]:
    """Whole states, each checked against its digest.

    :raises UnknownStateGroup: :raises BrokenChain: see :func:`chain_of`
    :raises CorruptState: a state is not the one that was stored
    :raises NumberWithoutRow: a slot or an event of a state is not here
    """
    room_no = room.room_no
    known = read_chains(txn, room_no, groups)
    by_slot = {group: state_in(group, known) for group in groups}
    keys = keys_of(txn, room_no, {slot for state in by_slot.values() for slot in state})
    ids = event_ids_of(txn, room_no, {no for state in by_slot.values() for no in state.values()})
    states: dict[int, dict[StateKey, str]] = {}
    for group, numbers in by_slot.items():
        state = states[group] = {keys[slot]: ids[number] for slot, number in numbers.items()}
        _check_state(room.digest_key, known[group], state)
    return states


def _check_state(digest_key: bytes, group: StoredGroup, state: Mapping[StateKey, str]) -> None:
    reason = None
    if len(state) != group.size:
        reason = f"it has {len(state)} entries, and {group.size} were stored"
    elif digest_of(digest_key, state.items()) != group.digest:
        reason = "its entries do not fit its digest"
    if reason is not None:
        raise CorruptState(group=group.group_no, room_no=group.room_no, reason=reason)


def change_between(
    older: int, newer: int, known: Mapping[int, StoredGroup]
) -> tuple[dict[int, int | None], dict[int, int | None]]:
    """What two groups have on top of the last group that is in both chains.

    The cost goes with the distance of the two, not with the size of their states.

    :param known: the groups with their whole chains
    :returns: for the first and for the second, the slots that its part of the chain sets or (None) removes.
        If the chains never meet, these are the whole states
    :raises UnknownStateGroup: :raises BrokenChain: see :func:`chain_of`
    """
    chains = [list(chain_of(group, known)) for group in (older, newer)]
    shared = {each.group_no for each in chains[0]} & {each.group_no for each in chains[1]}
    parts: list[dict[int, int | None]] = []
    for chain in chains:
        touched: dict[int, int | None] = {}
        for stored in chain:
            if stored.group_no in shared:
                break
            for slot, number in stored.changes.items():
                touched.setdefault(slot, number)
        parts.append(touched)
    return parts[0], parts[1]


def delta_between(
    older: int, newer: int, known: Mapping[int, StoredGroup]
) -> dict[int, int | None]:
    """What changes from the state of one group to that of another; see :func:`change_between`."""
    before, after = change_between(older, newer, known)
    gone = before.keys() - after.keys()
    if gone:
        # Where only the older one differs from what they share, the newer one has the shared entry.
        whole = state_in(newer, known)
        after.update({slot: whole.get(slot) for slot in gone})
    return {
        slot: number
        for slot, number in after.items()
        if slot not in before or before[slot] != number
    }


def slots_between(
    one: int, others: Iterable[int], known: Mapping[int, StoredGroup]
) -> dict[int, set[int]]:
    """The slots in which a group may differ from each of some others.

    The cost goes with the distances, not with the size of states or the length of chains.

    :param known: the groups with their whole chains
    :raises UnknownStateGroup: :raises BrokenChain: see :func:`chain_of`
    """
    chain = list(chain_of(one, known))
    depth = {stored.group_no: at for at, stored in enumerate(chain)}
    slots: dict[int, set[int]] = {}
    for other in others:
        differing = slots[other] = set()
        meeting = len(chain)
        for stored in chain_of(other, known):
            at = depth.get(stored.group_no)
            if at is not None:
                meeting = at
                break
            differing.update(stored.changes)
        for stored in chain[:meeting]:
            differing.update(stored.changes)
    return slots


class KnownGroups:
    """Groups that were read, as the planning of a group needs them."""

    def __init__(self, known: Mapping[int, StoredGroup]) -> None:
        self._known = known
        # Those of a chain are looked at for many groups in turn.
        self._deltas: dict[int, StateGroup] = {}

    def place(self, group: int) -> int | None:
        """The place of a group in its line of skip levels."""
        stored = self._known.get(group)
        return None if stored is None else stored.place

    def state_groups(self, groups: Collection[int]) -> Mapping[int, StateGroup]:
        """See :class:`~synrepl.rooms.StateGroupView`."""
        found = {}
        for group in groups:
            stored = self._deltas.get(group)
            if stored is None and group in self._known:
                stored = self._deltas[group] = _as_delta(self._known[group])
            if stored is not None:
                found[group] = stored
        return found


class PlannedDelta(NamedTuple):
    """How a group is to be stored.

    :ivar prev_group: the group that it becomes a delta to
    """

    prev_group: int
    place: int
    changes: SlotChange


def plan_change(
    prev: int, change: SlotChange, size: int, known: KnownGroups
) -> PlannedDelta | None:
    """How to store the group that differs from another by a change; None when it is to be stored in full.

    :param size: number of entries of the new state
    """
    below = known.place(prev)
    if (
        below is not None
        and below + 1 < LEVELS.line
        and 0 < len(change) < size
        and LEVELS.refers_to(below + 1) == below
    ):  # as for most groups, nothing is to be merged
        return PlannedDelta(prev, below + 1, change)
    plan = run(lookup_change(prev, _delta_of(change), size), known)
    if plan is None or plan.prev is None:
        return None
    return PlannedDelta(plan.prev, plan.place, _change_of(plan.delta))


# `synrepl.rooms` never looks into keys and IDs of a delta, so slots and event numbers take their places.


def _as_delta(group: StoredGroup) -> StateGroup:
    return StateGroup(group.prev_group, _delta_of(group.changes), group.place)


def _delta_of(change: SlotChange) -> Delta:
    entries: Any = {slot: number for slot, number in change.items() if number is not None}
    removed: Any = frozenset(slot for slot, number in change.items() if number is None)
    return Delta(entries, removed)


def _change_of(delta: Delta) -> SlotChange:
    change: dict[int, int | None] = dict(cast("Mapping[int, int]", delta.entries))
    change.update(dict.fromkeys(cast("Iterable[int]", delta.removed)))
    return change
