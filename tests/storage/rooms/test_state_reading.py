"""States as they are read: whole states from others that are kept, and entries of many states in one statement."""

from __future__ import annotations

from unittest.mock import patch

from synrepl.rooms import Room, RoomJudged, StateKey
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.rooms.reading.event_access import EventInOtherRoom, EventNotStored
from synrepl.storage.rooms.states.named_entries import NamedEntries, WholeState
from synrepl.storage.rooms.states.state_groups import CorruptState
from synrepl.storage.rooms.tables.numbers import NumberWithoutRow, require_room
from tests.rooms.dags import dag, dag_names
from tests.storage.rooms.reading_case import SMALL, ReadingCase

MAX_OVERLAY = "synrepl.storage.rooms.states.state_line.MAX_OVERLAY"


def full_events(room: Room) -> list[RoomJudged]:
    """The events of a room that have a state, in order."""
    return [each for each in room if each.accepted and each.state_after is not None]


class WholeStatesFromKeptOnes(ReadingCase):
    """A state is read as a change of one that was read before, and compared with its digest."""

    async def test_what_is_below_a_kept_state_is_not_read_again(self) -> None:
        events = full_events(await self.any_room())
        before, last = events[-2], events[-1]
        await self.store.state_ids_at(before.event.event_id)
        self.sql(
            "UPDATE synrepl._state_groups SET changes = set_byte(changes, 7, get_byte(changes, 7) # 1)"
            " WHERE group_no = (SELECT min(group_no) FROM synrepl._state_groups WHERE changes <> '')"
        )
        assert last.state_after is not None
        found = await self.store.state_ids_at(last.event.event_id)
        self.assertEqual(found, last.state_after.as_dict())
        with self.assertRaises((CorruptState, NumberWithoutRow)):
            await RoomStore(self.database).state_ids_at(last.event.event_id)

    async def test_a_kept_state_that_is_not_that_of_its_group_is_not_served(self) -> None:
        # As after a failover to a standby that gives numbers of groups out again.
        room = await self.any_room()
        room_id = room.room_id
        assert room_id is not None
        expected = await self.store.current_state_ids(room_id)
        names = self.store.names
        row = await self.read(lambda txn: require_room(txn, room_id))
        slot = self.sql("SELECT slot FROM synrepl._room_keys WHERE type = 'm.room.create'")
        for group, state in names.whole_states(row).items():
            create = state.entries[slot]
            other = create._replace(event_id="$other", hash=create.hash + 1)
            entries = {**state.entries, slot: other}
            ids = {**state.ids, create.key: "$other"}
            names.keep(row, group, WholeState(entries, ids, state.total + 1))
        self.assertEqual(await self.store.current_state_ids(room_id), expected)

    async def test_kept_states_have_bounded_sizes(self) -> None:
        names = NamedEntries(max_entries=10)
        store = RoomStore(self.database, names)
        room = await self.any_room()
        assert room.room_id is not None
        for each in full_events(room):
            assert each.state_after is not None
            found = await store.state_ids_at(each.event.event_id)
            self.assertEqual(found, each.state_after.as_dict())
            self.assertLessEqual(names.state_entries, 40)
        self.assertGreater(names.state_entries, 0)
        names.forget(await self.read(lambda txn: require_room(txn, str(room.room_id))))
        self.assertEqual((names.state_entries, len(names)), (0, 0))


class EntriesOfManyStates(ReadingCase):
    """Entries are those of the whole states, wherever on the lines the groups are."""

    async def test_on_branches_with_lines_of_their_own(self) -> None:
        branched = 0
        for name in dag_names(SMALL):
            with patch(MAX_OVERLAY, 1):
                room = await self.persist(dag(name))
            lines = self.sql("SELECT count(*) FROM synrepl._state_lines")
            overlays = self.sql(
                "SELECT count(*) FROM synrepl._state_group_lines WHERE cardinality(slots) > 0"
            )
            if lines > 1 and overlays:
                branched += 1
                await self.check_entries(room)
            await self.empty()
            if branched == 2:
                return
        self.fail("no two rooms of the vectors have branches with lines of their own")

    async def check_entries(self, room: Room) -> None:
        """Compare all entries of all states."""
        events = full_events(room)
        ids = [each.event.event_id for each in events]
        keys: dict[StateKey, None] = {("no.such", "key"): None}
        for each in events:
            assert each.state_after is not None
            keys |= dict.fromkeys(each.state_after.as_dict())
        for before in True, False:
            states = [each.state_before if before else each.state_after for each in events]
            expected = [{} if state is None else state.as_dict() for state in states]
            self.assertEqual(await self.store.entries_at(ids, list(keys), before=before), expected)
            # The same events again, in another order: each state comes where it was asked for.
            turned = await self.store.entries_at(
                [*reversed(ids), ids[0]], list(keys), before=before
            )
            self.assertEqual(turned, [*reversed(expected), expected[0]])

    async def test_what_is_damaged_or_unknown_has_a_named_error(self) -> None:
        room = await self.any_room()
        ids = [each.event.event_id for each in full_events(room)]
        keys: list[StateKey] = [("m.room.create", "")]
        with self.assertRaises(EventNotStored):
            await self.store.entries_at([*ids, "$unknown"], keys)
        with self.assertRaises(EventNotStored):
            await self.store.entries_at(["$\0"], keys)
        self.assertEqual(await self.store.entries_at(ids[:1], [("a\0", "")]), [{}])
        name = next(
            each for each in dag_names(SMALL) if dag(each).events[0].room_id != room.room_id
        )
        other = await self.persist(dag(name))
        with self.assertRaises(EventInOtherRoom):
            await self.store.entries_at([ids[0], next(iter(other)).event.event_id], keys)
        self.sql("DELETE FROM synrepl._state_lines")
        with self.assertRaisesRegex(NumberWithoutRow, "state line"):
            await self.store.entries_at(ids, keys)
