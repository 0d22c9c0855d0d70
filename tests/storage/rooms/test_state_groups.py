"""States in groups and on lines: any tree of states is read back, by whole and by key."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar
from unittest.mock import patch

from twisted.trial.unittest import TestCase

from synrepl.rooms import UnknownStateGroup
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.line_rebuild import (
    differing_groups,
    drop_lines,
    rebuild_lines,
)
from synrepl.storage.rooms.states.group_writer import GroupMemory, GroupWriter
from synrepl.storage.rooms.states.state_digest import StateDigest, digest_of
from synrepl.storage.rooms.states.state_groups import (
    CorruptState,
    NumberTooLarge,
    packed_changes,
    read_slot_states,
    read_states,
    unpacked_changes,
)
from synrepl.storage.rooms.states.state_line import (
    MAX_OVERLAY,
    look_up,
    read_lines,
    read_places,
)
from synrepl.storage.rooms.tables.numbers import (
    NumberWithoutRow,
    RoomRow,
    lock_room,
    make_room,
    require_room,
    take_numbers,
)
from synrepl.storage.rooms.tables.pending_rows import PendingRows
from tests.storage.postgres import PostgresCase

T = TypeVar("T")

ROOM = "!room:a.example"
KEYS = 120
EVENTS = 900
SECRET = bytes(range(32))


def key(slot: int) -> tuple[str, str]:
    return "m.room.member", f"@user{slot}:a.example"


def look_up_on_lines(
    txn: Transaction, room: RoomRow, wanted: Sequence[tuple[int, int]]
) -> list[int | None]:
    """Entries of states, each given as a group and a slot."""
    places = read_places(txn, room, {group for group, _ in wanted})
    lines = read_lines(txn, {place.line_no for place in places.values()})
    return look_up(txn, [(places[group], slot) for group, slot in wanted], lines)


class StoredStates(PostgresCase):
    """A tree of states, beside a model of dictionaries."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.database = self.process("one").database
        await self.run_work(self.make_rows)
        self.model: dict[int, dict[int, int]] = {}
        self.rng = random.Random(7)

    async def run_work(self, work: Callable[[Transaction], T]) -> T:
        return await self.database.run("a test", work)

    @staticmethod
    def make_rows(txn: Transaction) -> None:
        room_no = make_room(txn, ROOM, "10")
        txn.execute(
            "INSERT INTO synrepl._room_keys (room_no, slot, type, state_key)"
            " SELECT %s, n, 'm.room.member', '@user' || n || ':a.example'"
            " FROM generate_series(0, %s) n",
            (room_no, KEYS),
        )
        txn.execute(
            "INSERT INTO synrepl._room_events (event_no, event_id, room_no, type_no, sender, depth,"
            " origin_server_ts, prev_nos, auth_nos)"
            " SELECT n, '$e' || n, %s, 1, '@a:a.example', 1, 1, '{}', '{}'"
            " FROM generate_series(1, %s) n",
            (room_no, EVENTS),
        )

    def change_of(self, state: dict[int, int]) -> dict[int, int | None]:
        """A few entries set, and sometimes one removed."""
        rng = self.rng
        change: dict[int, int | None] = {
            rng.randrange(KEYS): rng.randrange(1, EVENTS) for _ in range(rng.choice([1, 1, 1, 4]))
        }
        if state and rng.random() < 0.2:
            change[rng.choice(list(state))] = None
        return change

    def grow(self, count: int, choose: Callable[[], int]) -> Callable[[Transaction], None]:
        """Work that adds groups, each on top of one that ``choose`` picks."""

        def work(txn: Transaction) -> None:
            room = lock_room(txn, make_room(txn, ROOM, "10"))
            rows = PendingRows()

            def take() -> int:
                return take_numbers(txn, 0, 1)[1][0]

            writer = GroupWriter(txn, room, rows, GroupMemory(), take)
            if not self.model:
                self.model[writer.make_first()] = {}
            for _ in range(count):
                base = choose()
                change = self.change_of(self.model[base])
                group = writer.make(base, change)
                state = {**self.model[base], **change}
                self.model[group] = {
                    slot: number for slot, number in state.items() if number is not None
                }
            writer.finish()
            rows.flush(txn)

        return work

    def newest(self) -> int:
        return max(self.model)

    def any_recent(self) -> int:
        return self.rng.choice(sorted(self.model)[-8:])

    async def check(self) -> None:
        """Everything that was stored is read back, in every way."""

        def work(txn: Transaction) -> None:
            room = require_room(txn, ROOM)
            groups = list(self.model)
            self.assertEqual(read_slot_states(txn, room.room_no, groups), self.model)
            few = self.rng.sample(groups, min(20, len(groups)))
            wanted = {
                group: {key(slot): f"$e{number}" for slot, number in self.model[group].items()}
                for group in few
            }
            self.assertEqual(read_states(txn, room, few), wanted)
            pairs = [(self.rng.choice(groups), self.rng.randrange(KEYS)) for _ in range(500)]
            expected = [self.model[group].get(slot) for group, slot in pairs]
            self.assertEqual(look_up_on_lines(txn, room, pairs), expected)
            txn.execute(
                "SELECT synrepl.state_entry(%s, g, s) FROM unnest(%s::bigint[], %s::int[])"
                " WITH ORDINALITY AS p (g, s, n) ORDER BY n",
                (room.room_no, [group for group, _ in pairs], [slot for _, slot in pairs]),
            )
            self.assertEqual([row[0] for row in txn.fetchall()], expected)
            self.assertEqual(list(differing_groups(txn, room)), [])

        await self.run_work(work)

    async def test_a_chain_of_states_needs_no_rows_beside_the_line(self) -> None:
        for _ in range(4):
            await self.run_work(self.grow(60, self.newest))
        await self.check()
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._state_group_lines"), 0)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._state_lines"), 1)

    async def test_a_tree_of_states(self) -> None:
        for _ in range(6):
            await self.run_work(self.grow(40, self.any_recent))
        await self.check()
        longest = self.sql("SELECT max(cardinality(slots)) FROM synrepl._state_group_lines")
        self.assertLessEqual(longest, MAX_OVERLAY)

    async def test_long_branches_get_lines_of_their_own(self) -> None:
        tips: list[int] = []

        def next_tip() -> int:
            """Four branches in turn, which all began at the first group."""
            tips.append(max(self.model) if len(self.model) > 1 else min(self.model))
            return tips[-4] if len(self.model) > 4 else min(self.model)

        for _ in range(5):
            await self.run_work(self.grow(80, next_tip))
        self.assertGreater(self.sql("SELECT count(*) FROM synrepl._state_lines"), 2)
        await self.check()

    async def test_the_nearest_line_counts_and_its_parent_up_to_the_fork(self) -> None:
        branched: dict[int, int | None] = dict.fromkeys(range(40, 41 + MAX_OVERLAY), 9)
        changes = iter(
            [{0: 1, 1: 1}, {0: 2}, {0: 3, 1: 3}, {1: 4, **branched}, {2: 5}]  # type: ignore[dict-item]
        )
        bases = iter([0, 1, 2, 2, 4])
        with patch.object(self, "change_of", lambda state: next(changes)):
            await self.run_work(self.grow(5, lambda: sorted(self.model)[next(bases)]))
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._state_lines"), 2)
        pairs = [(group, slot) for group in sorted(self.model)[3:] for slot in (0, 1, 2, 40)]
        found = await self.run_work(
            lambda txn: look_up_on_lines(txn, require_room(txn, ROOM), pairs)
        )
        self.assertEqual(found, [3, 3, None, None, 2, 4, None, 9, 2, 4, 5, 9])

    async def test_parallel_branches_do_not_repeat_a_long_delta(self) -> None:
        all_entries = {slot: slot + 1 for slot in range(KEYS)}
        with patch.object(self, "change_of", lambda state: all_entries):
            await self.run_work(self.grow(1, self.newest))
        await self.run_work(self.grow(140, self.newest))
        fork, tips = self.newest(), list[int]()

        def next_tip() -> int:
            """Eight branches in turn, past the place where deltas go back to the first group."""
            if self.newest() > fork:
                tips.append(self.newest())
            return tips[-8] if len(tips) >= 8 else fork

        await self.run_work(self.grow(80, next_tip))
        await self.check()
        long = self.sql(
            "SELECT count(*) FROM synrepl._state_groups WHERE group_no > %s"
            " AND length(changes) > 8 * 40",
            fork,
        )
        self.assertEqual(long, 1)

    async def test_lines_are_rebuilt_from_the_groups(self) -> None:
        for _ in range(3):
            await self.run_work(self.grow(60, self.any_recent))

        def drop(txn: Transaction) -> None:
            room = require_room(txn, ROOM)
            drop_lines(txn, room)
            self.assertEqual(list(differing_groups(txn, require_room(txn, ROOM))), list(self.model))

        def rebuild(txn: Transaction) -> None:
            self.assertEqual(rebuild_lines(txn, require_room(txn, ROOM)), len(self.model))

        await self.run_work(drop)
        await self.run_work(rebuild)
        await self.check()
        await self.run_work(self.grow(60, self.any_recent))
        await self.check()

    async def test_a_state_that_is_not_the_one_that_was_stored_is_not_served(self) -> None:
        await self.run_work(self.grow(20, self.newest))
        last = self.newest()
        self.sql(
            "UPDATE synrepl._state_groups SET changes = set_byte(changes, 7, get_byte(changes, 7) # 1)"
            " WHERE group_no = %s",
            last,
        )
        room = await self.run_work(lambda txn: require_room(txn, ROOM))
        with self.assertRaisesRegex(CorruptState, "do not fit its digest"):
            await self.run_work(lambda txn: read_states(txn, room, [last]))
        self.sql("DELETE FROM synrepl._room_keys WHERE slot < 100")
        with self.assertRaisesRegex(NumberWithoutRow, "slot"):
            await self.run_work(lambda txn: read_states(txn, room, [last]))
        self.sql("DELETE FROM synrepl._state_groups WHERE group_no < %s", last)
        with self.assertRaises((UnknownStateGroup, CorruptState)):
            await self.run_work(lambda txn: read_slot_states(txn, room.room_no, [last]))

    async def test_a_line_that_differs_from_its_groups_is_found(self) -> None:
        await self.run_work(self.grow(20, self.newest))
        self.sql("DELETE FROM synrepl._state_line WHERE pos = %s", self.newest())
        found = await self.run_work(
            lambda txn: list(differing_groups(txn, require_room(txn, ROOM)))
        )
        self.assertEqual(found, [self.newest()])


class PackedEntries(TestCase):
    """Slots and event numbers share 64 bits."""

    def test_the_largest_numbers_are_read_back(self) -> None:
        change = {0: 1, (1 << 23) - 1: (1 << 40) - 1, 7: None}
        packed = packed_changes(1, change)
        self.assertEqual(list(unpacked_changes(packed).items()), sorted(change.items()))

    def test_numbers_that_do_not_fit_are_refused(self) -> None:
        changes: list[dict[int, int | None]] = [{1 << 23: 1}, {-1: 1}, {1: 1 << 40}, {1: 0}]
        for change in changes:
            with self.assertRaisesRegex(NumberTooLarge, "cannot be part of a state"):
                packed_changes(1, change)


class Digests(PostgresCase):
    """Digests depend on the entries alone."""

    def test_the_order_of_changes_does_not_matter(self) -> None:
        one, two = (key(1), "$a"), (key(2), "$b")
        none = StateDigest(SECRET)
        both = none.added([one]).added([two])
        self.assertEqual(both.digest, digest_of(SECRET, [two, one]))
        self.assertEqual(both.removed([one]).digest, digest_of(SECRET, [two]))
        self.assertEqual(both.removed([two, one]), none)
        self.assertEqual(StateDigest.stored(SECRET, both.digest), both)

    def test_other_secrets_give_other_digests(self) -> None:
        state = [(key(1), "$a"), (key(2), "$b")]
        self.assertNotEqual(digest_of(SECRET, state), digest_of(bytes(32), state))

    def test_texts_are_kept_apart(self) -> None:
        states = [
            (("ab", "c"), "$d"),
            (("a", "bc"), "$d"),
            (("ab", ""), "c$d"),
            (("ab", "c$"), "d"),
        ]
        self.assertEqual(len({digest_of(SECRET, [each]) for each in states}), len(states))

    def test_an_entry_twice_is_not_none(self) -> None:
        """As it would be with XOR."""
        one = (key(1), "$a")
        self.assertNotEqual(StateDigest(SECRET).added([one, one]), StateDigest(SECRET))
