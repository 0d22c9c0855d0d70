"""Compares a stored room with the same room in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple
from unittest import TestCase

from msgspec.structs import replace

from synrepl.rooms import (
    CompactStateMap,
    Judged,
    Room,
    StateKey,
    audience_of,
    effect_of_redaction,
)
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.line_rebuild import differing_groups
from synrepl.storage.rooms.states.state_groups import read_slot_states, read_states
from synrepl.storage.rooms.tables.events import events_by_id, raw_json, refusal_of
from synrepl.storage.rooms.tables.heads import current_state, forward_extremities, read_heads
from synrepl.storage.rooms.tables.numbers import RoomRow, require_room
from synrepl.storage.rooms.tables.waiting import waiting_events
from synrepl.storage.rooms.visibility.audience import NOBODY_BIT, unpack_audience


class Kept(NamedTuple):
    """What maintenance left of a room.

    :ivar gone: events that are not here any more
    :ivar demoted: events that are outliers now
    :ivar unordered: events whose topological ordering is not that of the room in memory, because they came when
        those that they follow were gone
    :ivar raw: the JSON of events that is not what came
    """

    gone: Collection[str] = frozenset()
    demoted: Collection[str] = frozenset()
    unordered: Collection[str] = frozenset()
    raw: Mapping[str, bytes] = {}


def compare_room(
    txn: Transaction,
    room: Room,
    what: object = None,
    orders: bool = True,
    kept: Kept | None = None,
) -> None:
    """A stored room has the events, verdicts, states, audiences and ends of one in memory.

    :param what: shown when they differ
    :param orders: whether stream orderings are compared
    :param kept: what is left of it; None: all
    """
    RoomComparison(kept or Kept()).check(txn, room, what, orders)


class RoomComparison(TestCase):
    """The assertions, outside of a test."""

    maxDiff = None

    def __init__(self, kept: Kept) -> None:
        super().__init__()
        self._kept = kept

    def _is_outlier(self, event: Judged[CompactStateMap]) -> bool:
        return event.state_before is None or event.event.event_id in self._kept.demoted

    def _stored(self, room: Room) -> dict[str, Judged[CompactStateMap]]:
        """The events that are here."""
        return {
            each.event.event_id: each for each in room if each.event.event_id not in self._kept.gone
        }

    def runTest(self) -> None:
        """It is no test."""

    def check(self, txn: Transaction, room: Room, what: object, orders: bool) -> None:
        """Compare everything."""
        assert room.room_id is not None
        row = require_room(txn, room.room_id)
        judged = self._stored(room)
        rows = events_by_id(txn, judged)
        txn.execute("SELECT event_id FROM synrepl._room_events WHERE room_no = %s", (row.room_no,))
        self.assertEqual({each for (each,) in txn.fetchall()}, judged.keys(), what)
        json = raw_json(txn, rows.values())
        groups: dict[int, CompactStateMap] = {}
        for event_id, expected in judged.items():
            stored = rows[event_id]
            here = (what, event_id, stored)
            raw = self._kept.raw.get(event_id, expected.event.raw)
            self.assertEqual(json[event_id], raw, here)
            self.assertEqual(stored.is_rejected, not expected.accepted, here)
            self.assertEqual(bool(stored.flags & 8), expected.partial, here)
            self.assertEqual(stored.is_outlier, self._is_outlier(expected), here)
            if stored.refusal is not None:
                reason = expected.refusal or expected.soft_failure
                self.assertEqual(refusal_of(stored.refusal), (expected.failed, reason), here)
            if event_id in self._kept.demoted:
                self.assertEqual(bool(stored.refusal), not expected.accepted, here)
            else:
                self.assertEqual(stored.passed_all_checks, expected.passed_all_checks, here)
                self.assertEqual(bool(stored.refusal), expected.failed is not None, here)
            if (
                self._is_outlier(expected)
                or expected.state_before is None
                or expected.state_after is None
            ):
                self.assertEqual((stored.stream_id, stored.group_before), (None, None), here)
                continue
            if event_id not in self._kept.unordered:
                self.assertEqual(stored.topological, expected.topological, here)
            assert stored.group_before is not None
            assert stored.group_after is not None
            for group, state in (
                (stored.group_before, expected.state_before),
                (stored.group_after, expected.state_after),
            ):
                self.assertEqual(groups.setdefault(group, state), state, here)
            self._check_audience(stored.audience, expected, room, here)
        numbers = {stored.event_no: event_id for event_id, stored in rows.items()}
        keys = self._keys(txn, row.room_no)
        for group, numbered in read_slot_states(txn, row.room_no, list(groups)).items():
            entries = {keys[slot]: numbers[number] for slot, number in numbered.items()}
            self.assertEqual(entries, groups[group].as_dict(), (what, group))
        few = sorted(groups)[:: max(1, len(groups) // 20)]
        read_states(txn, row, few)
        self.assertEqual(list(differing_groups(txn, row, few)), [], what)
        current = {each.key: each.event_id for each in current_state(txn, row.room_no)}
        expected_current = room.current_state().as_dict()
        self.assertEqual(current, expected_current, what)
        ends = set(forward_extremities(txn, row.room_no).values())
        self.assertEqual(ends, room.forward_extremities, what)
        if orders:
            in_stream = [each for each in judged.values() if not self._is_outlier(each)]
            in_stream.sort(key=lambda each: each.ordering.stream)
            ordered = sorted(
                (each for each in rows.values() if each.stream_id is not None),
                key=lambda each: each.stream_id or 0,
            )
            self.assertEqual(
                [each.event_id for each in ordered],
                [each.event.event_id for each in in_stream],
                what,
            )
        self._check_heads(txn, room, row, what)
        self._check_edges(txn, room, row.room_no, what)
        self._check_members(txn, room, row.room_no, what)
        redacted = {each for each, stored in rows.items() if stored.redacted_by is not None}
        self.assertEqual(redacted, self._redacted(room), what)
        for stored in rows.values():
            if stored.redacted_by is not None:
                by = room[numbers[stored.redacted_by]].event
                self.assertEqual(by.redacts, stored.event_id, what)

    def _redacted(self, room: Room) -> set[str]:
        """The events that some redaction applies to."""
        found: set[str] = set()
        for each in room:
            target, gone = each.event.redacts, self._kept.gone
            if target is None or target not in room or not each.passed_all_checks:
                continue
            if target in gone or each.event.event_id in gone:
                continue
            if each.state_before is None:
                continue
            state = {key: room[one].event for key, one in each.state_before.items()}
            if effect_of_redaction(each.event, room[target].event, state).why.applies:
                found.add(target)
        return found

    def _keys(self, txn: Transaction, room_no: int) -> dict[int, StateKey]:
        txn.execute(
            "SELECT slot, type, state_key FROM synrepl._room_keys WHERE room_no = %s", (room_no,)
        )
        return {slot: (kind, state_key) for slot, kind, state_key in txn.fetchall()}

    def _check_audience(
        self, packed: int | None, expected: Judged[CompactStateMap], room: Room, what: object
    ) -> None:
        assert packed is not None, what
        if not expected.accepted:
            self.assertTrue(packed & NOBODY_BIT, what)
            return
        assert expected.state_before is not None
        event = expected.event
        before = {key: room[each].event for key, each in expected.state_before.items()}
        soft_failed = expected.soft_failure is not None
        wanted = audience_of(event, before, soft_failed=soft_failed)
        found = unpack_audience(packed, event.event_id, event.sender, event.state_key)
        assert found is not None, what
        if wanted.target_before not in ("leave", "join", "invite", "ban", "knock"):
            found = replace(found, target_before=wanted.target_before)
        self.assertEqual(found, wanted, what)

    def _check_heads(self, txn: Transaction, room: Room, row: RoomRow, what: object) -> None:
        room_no = row.room_no
        heads = read_heads(txn, room_no)
        assert heads is not None
        here = self._stored(room).values()
        full = [each for each in here if not self._is_outlier(each)]
        self.assertEqual(heads.events, len(full), what)
        self.assertEqual(heads.outliers, len(here) - len(full), what)
        self.assertEqual(heads.extremities, len(room.forward_extremities), what)
        if not self._kept.unordered:
            highest = [each.topological for each in room if each.state_before is not None]
            self.assertEqual(heads.topological, max([0, *highest]), what)
        self.assertEqual(heads.partial, len(room.partial_event_ids), what)
        (state,) = read_states(txn, row, [heads.current_group]).values()
        self.assertEqual(state, room.current_state().as_dict(), what)
        waiting = [each.event_id for each in waiting_events(txn, room_no, 1 << 20)]
        self.assertEqual(set(waiting), set(room.waiting), what)
        self.assertEqual(heads.waiting, len(waiting), what)

    def _check_edges(self, txn: Transaction, room: Room, room_no: int, what: object) -> None:
        txn.execute(
            "SELECT e.event_id, ARRAY(SELECT p.event_id FROM synrepl._room_events p"
            "  WHERE p.event_no = ANY (e.prev_nos)),"
            " ARRAY(SELECT b.missing_id FROM synrepl._backward_extremities b"
            "  WHERE b.room_no = e.room_no AND b.child_no = e.event_no), e.flags & 1"
            " FROM synrepl._room_events e WHERE e.room_no = %s",
            (room_no,),
        )
        for event_id, prev_ids, missing_ids, is_outlier in txn.fetchall():
            expected = set() if is_outlier else set(room[event_id].prev_event_ids)
            left = self._kept
            here = {
                each
                for each in expected
                if room.has_state(each) and each not in left.gone and each not in left.demoted
            }
            self.assertEqual(set(prev_ids), here, (what, event_id))
            self.assertEqual(set(missing_ids), expected - here, (what, event_id))

    def _check_members(self, txn: Transaction, room: Room, room_no: int, what: object) -> None:
        txn.execute(
            "SELECT m.user_id, e.event_id, m.membership FROM synrepl._memberships m"
            " JOIN synrepl._room_events e USING (event_no) WHERE m.room_no = %s",
            (room_no,),
        )
        found = {user: (event_id, membership) for user, event_id, membership in txn.fetchall()}
        expected = {
            key[1]: (event_id, room[event_id].event.membership)
            for key, event_id in room.current_state().items()
            if key[0] == "m.room.member"
        }
        self.assertEqual(found, expected, what)
