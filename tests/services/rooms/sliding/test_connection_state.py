"""What connections remember of rooms, in few bytes."""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from synrepl.services.rooms.sliding import connection_state
from synrepl.services.rooms.sliding.connection_state import (
    MAX_BEHIND,
    WHOLE,
    ConnectionState,
    CorruptConnection,
    RoomRecord,
    ToldOf,
)
from synrepl.services.rooms.sliding.required_state import RequiredState

NAME = RequiredState(frozenset({("m.room.name", "")}))
TOPIC = RequiredState(frozenset({("m.room.topic", None)}))


def record(rng: Random) -> RoomRecord:
    """Any record."""
    return RoomRecord(
        rng.choice([NAME, TOPIC, NAME | TOPIC, b"0123456789ab"]),
        rng.choice([0, 1, 20, WHOLE]),
        ToldOf(rng.randrange(16)),
        rng.choice([None, None, "s1", "s2"]),
    )


class Storing(SynchronousTestCase):
    """States as bytes."""

    def test_a_state_is_the_same_after_it_was_stored(self) -> None:
        for seed in range(200):
            rng = Random(seed)
            state = ConnectionState()
            for _ in range(rng.randrange(5)):
                changes = {rng.randrange(1, 50): record(rng) for _ in range(10)}
                gone = dict.fromkeys(rng.sample(range(1, 50), 5))
                state = state.updated({**changes, **gone}, has_account_data=rng.random() < 0.5)
            again = ConnectionState.unpacked(state.packed(), 1)
            self.assertEqual(again, state)
            self.assertEqual(again.packed(), state.packed())

    def test_a_room_takes_six_bytes(self) -> None:
        rooms = {number: RoomRecord(NAME, 20) for number in range(1, 2_001)}
        self.assertLess(len(ConnectionState(rooms).packed()), 6 * 2_000 + 200)

    def test_bytes_that_are_no_state_are_refused(self) -> None:
        rng = Random(1)
        packed = ConnectionState().updated({7: record(rng), 9: record(rng)}).packed()
        for length in range(len(packed)):
            with self.assertRaises(CorruptConnection):
                ConnectionState.unpacked(packed[:length], 1)
        for seed in range(2_000):
            changed = bytearray(packed)
            Random(seed).shuffle(changed)
            try:
                ConnectionState.unpacked(bytes(changed), 1)
            except CorruptConnection as error:
                self.assertIn("connection 1", str(error))

    def test_very_long_wanted_states_are_remembered_by_their_digest(self) -> None:
        long = RequiredState(frozenset(("m.room.member", "x" * 200 + str(n)) for n in range(200)))
        other = RequiredState(frozenset(("m.x", "x" * 200 + str(n)) for n in range(200)))
        state = ConnectionState({1: RoomRecord(long, 1), 2: RoomRecord(other, 1)})
        packed = state.packed()
        self.assertLess(len(packed), connection_state.MAX_KNOWN_BYTES + 500)
        again = ConnectionState.unpacked(packed, 1)
        self.assertTrue(again.rooms[1].knows(long))
        self.assertTrue(again.rooms[2].knows(other))
        self.assertFalse(again.rooms[2].knows(NAME))
        self.assertEqual(again.packed(), packed)


class Updating(SynchronousTestCase):
    """What is forgotten, and when nothing changes."""

    def test_the_same_records_change_nothing(self) -> None:
        state = ConnectionState().updated({1: RoomRecord(NAME, 1), 2: RoomRecord(NAME, 2)})
        self.assertIs(state.updated({1: RoomRecord(NAME, 1), 3: None}), state)
        self.assertIsNot(state.updated({1: RoomRecord(TOPIC, 1)}), state)
        self.assertIsNot(state.updated({}, has_account_data=True), state)

    def test_rooms_that_were_left_behind_long_ago_are_forgotten(self) -> None:
        state = ConnectionState({n: RoomRecord(NAME, 1) for n in range(1, MAX_BEHIND + 4)})
        for number in range(1, MAX_BEHIND + 3):
            state = state.updated({number: RoomRecord(NAME, 1, behind=f"s{number}")})
        self.assertEqual(len(state.behind), MAX_BEHIND)
        self.assertNotIn(1, state.rooms)
        self.assertNotIn(2, state.rooms)
        self.assertEqual(state.rooms[3].behind, "s3")
        self.assertIn(MAX_BEHIND + 3, state.rooms)
        back = state.updated({3: RoomRecord(NAME, 1)})
        self.assertEqual(len(back.behind), MAX_BEHIND - 1)

    def test_of_too_many_rooms_those_are_kept_that_are_wanted(self) -> None:
        self.patch(connection_state, "MAX_ROOMS", 5)
        state = ConnectionState().updated({n: RoomRecord(NAME, 1) for n in range(1, 6)}, {3})
        self.assertEqual(len(state.rooms), 5)
        self.assertEqual(set(state.updated({9: RoomRecord(NAME, 1)}, {3, 9}).rooms), {3, 9})
