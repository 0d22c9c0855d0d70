"""State groups are stored in another way, with proof that their states stay what they are.

What to store is found out without the room's lock: states of groups never change. The new rows are compared, with
their chains, with the states whose digests were proven: before the lock is taken where only a group's own row changes,
and otherwise after they were written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from synrepl.rooms import UnknownStateGroup
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.proven_states import ProvenStates
from synrepl.storage.rooms.states.state_groups import (
    CorruptState,
    SlotChange,
    SlotState,
    StoredGroup,
    packed_changes,
    read_chains,
    state_in,
    unpacked_changes,
)
from synrepl.storage.rooms.tables.numbers import room_by_number


class RebasedGroup(NamedTuple):
    """A group as it is to be stored.

    :ivar changes: what is new or changed, and (None) removed, in comparison with ``prev_group``
    :ivar state: its whole state, with the digest that was stored
    """

    group_no: int
    prev_group: int | None
    place: int
    changes: SlotChange
    state: SlotState

    @property
    def cost(self) -> int:
        """The number of slots in its row."""
        return len(self.changes)


def delta_to(
    group_no: int, place: int, state: SlotState, base: int | None, below: SlotState
) -> RebasedGroup:
    """A group as a delta to another one."""
    changes: dict[int, int | None] = dict(state.items() - below.items())
    changes.update(dict.fromkeys(below.keys() - state.keys()))
    return RebasedGroup(group_no, base, place, changes, state)


def prepare_rebase(
    txn: Transaction, room_no: int, groups: Iterable[int], near: Collection[int] = ()
) -> list[RebasedGroup]:
    """How to store groups whose chains lead to groups that are about to go.

    Each becomes a delta to the first group of its chain that is kept, or to one of the groups that were
    rebased before, or is stored in full, whatever takes the fewest entries. Places stay, so what is a
    delta to these groups stays as it is. The groups that are kept are those of
    :func:`~.kept_groups.find_kept_groups`.

    :param groups: those to rebase, in their order
    :param near: groups that others were rebased to before
    :raises CorruptState: :raises UnknownStateGroup: :raises BrokenChain: :raises NumberWithoutRow: a group is
        damaged; then nothing may be removed
    """
    states = ProvenStates(txn, room_by_number(txn, room_no))
    bases = list(near)
    done: list[RebasedGroup] = []
    for group in groups:
        state = states.state(group)
        place = states.row(group).place
        chain = states.chain(group)[1:]
        txn.execute(
            "SELECT group_no FROM _kept_groups WHERE group_no = ANY (%s::bigint[])", (chain,)
        )
        kept = {int(each) for (each,) in txn.fetchall()}
        candidates = [each for each in chain if each in kept][:1]
        rows = states.rows(bases).values()
        candidates += [
            each.group_no for each in rows if each.group_no < group and each.place < place
        ][-3:]
        options = [delta_to(group, place, state, None, {})]
        options += [delta_to(group, place, state, each, states.state(each)) for each in candidates]
        done.append(min(options, key=lambda each: each.cost))
        bases.append(group)
    return done


class ProvenRow(NamedTuple):
    """A row of a group that gives its state."""

    group_no: int
    prev_group: int | None
    place: int
    changes: bytes


def prove_rebased(
    txn: Transaction, room_no: int, rebased: Sequence[RebasedGroup]
) -> list[ProvenRow]:
    """The rows of groups that are to be stored in another way. The room need not be locked.

    :raises CorruptState: :raises UnknownStateGroup: :raises BrokenChain: a row would give another state, or none
    """
    bases = [each.prev_group for each in rebased if each.prev_group is not None]
    known = read_chains(txn, room_no, bases)
    rows = []
    for each in rebased:
        packed = packed_changes(room_no, each.changes)
        size, changes = len(each.state), unpacked_changes(packed)
        known[each.group_no] = StoredGroup(
            each.group_no, each.prev_group, room_no, size, each.place, b"", changes
        )
        if state_in(each.group_no, known) != each.state:
            reason = "it would be another one if it were stored in another way"
            raise CorruptState(group=each.group_no, room_no=room_no, reason=reason)
        rows.append(ProvenRow(each.group_no, each.prev_group, each.place, packed))
    return rows


def write_proven(txn: Transaction, room_no: int, rows: Iterable[ProvenRow]) -> None:
    """Store groups in another way. The caller holds the room's lock.

    :raises UnknownStateGroup: one is not here; the transaction must be rolled back
    """
    for each in rows:
        txn.execute(
            "UPDATE synrepl._state_groups SET prev_group = %s, place = %s, changes = %s"
            " WHERE room_no = %s AND group_no = %s",
            (each.prev_group, each.place, each.changes, room_no, each.group_no),
        )
        if txn.rowcount != 1:
            raise UnknownStateGroup(group=each.group_no)


def write_rebased(txn: Transaction, room_no: int, rebased: Sequence[RebasedGroup]) -> None:
    """Store groups in another way, and read them back. The caller holds the room's lock.

    :raises CorruptState: what was read back is another state; the transaction must be rolled back
    """
    for each in rebased:
        changes = packed_changes(room_no, each.changes)
        txn.execute(
            "UPDATE synrepl._state_groups SET prev_group = %s, place = %s, changes = %s"
            " WHERE room_no = %s AND group_no = %s",
            (each.prev_group, each.place, changes, room_no, each.group_no),
        )
    known = read_chains(txn, room_no, [each.group_no for each in rebased])
    for each in rebased:
        if each.group_no not in known or state_in(each.group_no, known) != each.state:
            reason = "it would be another one after being stored in another way"
            raise CorruptState(group=each.group_no, room_no=room_no, reason=reason)
