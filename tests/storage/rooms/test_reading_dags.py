"""What a room store answers about the rooms of the vectors is what a room in memory answers."""

from __future__ import annotations

import random
from unittest import TestCase

from synrepl.rooms import (
    BitSetChains,
    DifferingEvents,
    StateKey,
    canonical_json,
    full_conflicted_set,
    redact,
)
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.rooms.reading.auth_reading import ChainMemory
from synrepl.storage.rooms.reading.event_access import (
    EventInOtherRoom,
    EventIsOutlier,
    EventNotStored,
    EventRejected,
    TooManyNamed,
)
from synrepl.storage.rooms.reading.room_overview import BadRoomLimit
from synrepl.storage.rooms.states.named_entries import NamedEntries
from synrepl.storage.rooms.states.state_groups import CorruptState
from synrepl.storage.rooms.tables.events import CorruptEvent, EventFlags, MissingJson
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.rooms.tables.numbers import NumberWithoutRow, RoomRow, UnknownRoom
from tests.rooms.dags import dag, dag_names
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.reading_case import SMALL, ReadingCase, SharedReadingCase
from tests.storage.rooms.store_case import StoreCase

CREATE: StateKey = ("m.room.create", "")


class ReadDags(SharedReadingCase):
    """Each answer of a store, for rooms of the vectors."""

    async def test_states_at_every_event(self) -> None:
        """The state before each event, or the one after it; of some also parts."""
        rng = random.Random(1)
        for name in dag_names(SMALL):
            for judged in await self.stored_room(name):
                if judged.state_before is None or judged.state_after is None:
                    continue
                event_id, before = judged.event.event_id, rng.choice([True, False])
                state = (judged.state_before if before else judged.state_after).as_dict()
                found = await self.store.state_ids_at(event_id, before=before, rejected=True)
                self.assertEqual(found, state, (name, event_id, before))
                if rng.random() < 0.3:
                    await self.check_part(event_id, before, state, rng)

    async def check_part(
        self, event_id: str, before: bool, state: dict[StateKey, str], rng: random.Random
    ) -> None:
        """Look up a few keys of a state, and all of a type."""
        keys = [CREATE, ("no.such", "key"), *rng.sample(sorted(state), min(3, len(state)))]
        found = await self.store.state_ids_at(event_id, before=before, rejected=True, keys=keys)
        self.assertEqual(found, {key: state[key] for key in keys if key in state}, event_id)
        found = await self.store.state_ids_at(
            event_id, before=before, rejected=True, types=["m.room.member", "x"]
        )
        members = {key: state[key] for key in state if key[0] == "m.room.member"}
        self.assertEqual(found, members, event_id)

    async def test_the_bytes_of_every_event(self) -> None:
        for name in dag_names(SMALL):
            room = await self.stored_room(name)
            ids = [each.event.event_id for each in room]
            found = await self.store.events([*ids, "$nowhere"], as_it_came=True)
            self.assertEqual(
                {each: found[each].json for each in found},
                {each.event.event_id: each.event.raw for each in room},
                name,
            )
            for event_id, copy in (await self.store.events(ids)).items():
                event = room[event_id].event
                whole = event.raw
                if copy.redacted_by is not None:
                    whole = canonical_json(redact(event.fields, event.version))
                self.assertEqual(copy.json, whole, (name, event_id))
                self.assertEqual(copy.state_key, event.state_key)

    async def test_differences_auth_chains_and_subgraphs(self) -> None:
        rng = random.Random(2)
        for name in dag_names(SMALL):
            room = await self.stored_room(name)
            room_id = room.room_id
            assert room_id is not None
            chains = BitSetChains([each.event for each in room])
            judged = [each for each in room if each.state_after is not None and each.accepted]
            for _ in range(5):
                one, two = rng.choice(judged), rng.choice(judged)
                assert one.state_after is not None
                assert two.state_after is not None
                ids = [one.event.event_id, two.event.event_id]
                chain = await self.store.auth_chain(ids)
                self.assertEqual(set(chain), chains.chain(ids[0]) | chains.chain(ids[1]), name)
                states = [one.state_after.as_dict(), two.state_after.as_dict()]
                change = await self.store.state_difference(*ids)
                keys = {
                    key
                    for key in {**states[0], **states[1]}
                    if states[0].get(key) != states[1].get(key)
                }
                self.assertEqual(change.old, {key: states[0].get(key) for key in keys}, name)
                self.assertEqual(change.new, {key: states[1].get(key) for key in keys}, name)
                full = await self.store.auth_difference(
                    room_id, [list(state.values()) for state in states]
                )
                conflicted = {state[key] for state in states for key in keys if key in state}
                expected = chains.difference(
                    DifferingEvents.of_states(
                        [[state[key] for key in keys if key in state] for state in states]
                    ),
                    [each for key, each in states[0].items() if key not in keys],
                )
                self.assertEqual(full, expected, name)
                if room.version.name == "12" and keys:
                    graph = await self.store.conflicted_subgraph(room_id, conflicted)
                    expected = full_conflicted_set(room.version, states, chains)
                    self.assertEqual(graph | full | conflicted, expected, name)

    async def test_auth_events_come_before_those_that_cite_them(self) -> None:
        room = await self.any_room()
        newest = [each for each in room if each.accepted][-1].event.event_id
        chain = await self.store.auth_chain([newest])
        for place, event_id in enumerate(chain):
            for cited in room[event_id].event.auth_event_ids:
                self.assertIn(cited, chain[:place])

    async def test_current_state_ends_members_and_figures(self) -> None:
        for name in dag_names(SMALL):
            room = await self.stored_room(name)
            room_id = room.room_id
            assert room_id is not None
            state = room.current_state().as_dict()
            self.assertEqual(await self.store.current_state_ids(room_id), state, name)
            whole = await self.store.current_state(room_id)
            self.assertEqual({key: each.event_id for key, each in whole.items()}, state, name)
            ends = await self.store.heads(room_id)
            self.assertEqual(set(ends.forward), room.forward_extremities, name)
            self.assertEqual(set(ends.missing), set(room.missing), name)
            members = {
                key[1]: room[each].event.membership
                for key, each in state.items()
                if key[0] == "m.room.member"
            }
            found = {each.user_id: each.membership for each in await self.store.members(room_id)}
            self.assertEqual(found, members, name)
            joined = await self.store.members(room_id, membership="join", limit=1)
            again = await self.store.members(
                room_id, membership="join", after=joined[0].user_id if joined else None
            )
            expected = sorted(each for each in members if members[each] == "join")
            self.assertEqual(
                [each.user_id for each in [*joined, *again]][: len(expected)], expected
            )
            figures = await self.store.room(room_id)
            self.assertEqual((figures.state, figures.joined), (len(state), len(expected)), name)
            self.assertEqual(figures.extremities, len(room.forward_extremities), name)
            named = state.get(("m.room.name", ""))
            if named is not None:
                self.assertEqual(figures.name, room[named].event.content.get("name"), name)

    async def test_the_graph_is_that_of_the_events(self) -> None:
        room = await self.any_room()
        room_id = room.room_id
        assert room_id is not None
        full = [each for each in room if each.state_before is not None]
        whole = await self.store.graph(room_id, limit=2_000)
        self.assertEqual({each.event_id for each in whole}, {each.event.event_id for each in full})
        seen: set[str] = set()
        for each in whole:
            event = room[each.event_id].event
            self.assertEqual(set(each.prev_event_ids), set(event.prev_event_ids))
            self.assertLessEqual(set(each.prev_event_ids) - set(each.missing_ids), seen)
            self.assertEqual(each.is_end, each.event_id in room.forward_extremities)
            seen.add(each.event_id)
        middle = whole[len(whole) // 2]
        part = await self.store.graph(room_id, until=middle.event_id, limit=3)
        at = whole.index(middle)
        self.assertEqual(part, whole[at - 2 : at + 1])

    async def test_rooms_come_page_by_page(self) -> None:
        ids = {(await self.stored_room(name)).room_id for name in dag_names(20)[:5]}
        found: list[str] = []
        while page := await self.store.rooms(after=found[-1] if found else None, limit=2):
            found += [each.room_id for each in page]
        stored = self.sql("SELECT array_agg(room_id) FROM synrepl._rooms")
        self.assertEqual(found, sorted(stored))
        self.assertLessEqual(ids, set(found))

    async def test_many_events_are_looked_up_at_once(self) -> None:
        room = await self.any_room()
        full = [each for each in room if each.state_after is not None and each.accepted]
        ids = [each.event.event_id for each in full]
        keys = [CREATE, ("m.room.power_levels", ""), ("m.room.name", "")]
        found = await self.store.entries_at(ids, keys)
        for each, entries in zip(full, found, strict=True):
            assert each.state_after is not None
            state = each.state_after.as_dict()
            self.assertEqual(entries, {key: state[key] for key in keys if key in state})
        self.assertEqual(await self.store.entries_at([], keys), [])

    async def test_what_cannot_be_answered_has_a_named_error(self) -> None:
        room = await self.any_room()
        room_id = room.room_id
        assert room_id is not None
        other = await self.stored_room(
            next(each for each in dag_names(20) if dag(each).events[0].room_id != room_id)
        )
        newest = [each for each in room if each.accepted][-1].event.event_id
        elsewhere = [each for each in other if each.accepted][-1].event.event_id
        for unknown in ("$nowhere", "$with\0nul"):
            with self.assertRaisesRegex(EventNotStored, "not in the store"):
                await self.store.state_ids_at(unknown)
            with self.assertRaises(EventNotStored):
                await self.store.event(unknown)
            with self.assertRaises(EventNotStored):
                await self.store.auth_chain([unknown])
        for unknown in ("!nowhere:a.example", "!with\0nul:a.example"):
            with self.assertRaises(UnknownRoom):
                await self.store.current_state_ids(unknown)
            with self.assertRaises(UnknownRoom):
                await self.store.heads(unknown)
            with self.assertRaises(UnknownRoom):
                await self.store.room(unknown)
            with self.assertRaises(UnknownRoom):
                await self.store.graph(unknown)
        with self.assertRaises(EventInOtherRoom):
            await self.store.state_difference(newest, elsewhere)
        with self.assertRaises(EventInOtherRoom):
            await self.store.auth_difference(room_id, [[newest], [elsewhere]])
        with self.assertRaises(TooManyNamed):
            await self.store.events([f"${number}" for number in range(1_001)])
        for limit in (0, 1_001):
            with self.assertRaises(BadRoomLimit):
                await self.store.rooms(limit=limit)

    async def test_rejected_events_are_not_part_of_the_room(self) -> None:
        for name in dag_names(SMALL):
            room = await self.stored_room(name)
            rejected = [each for each in room if not each.accepted]
            for each in rejected:
                event_id = each.event.event_id
                with self.assertRaisesRegex(EventRejected, "was rejected"):
                    await self.store.state_ids_at(event_id)
                copy = await self.store.event(event_id)
                self.assertTrue(copy.flags & EventFlags.REJECTED)
                assert each.refusal is not None
                self.assertEqual(copy.refusal, each.refusal.sentence)
            if rejected:
                return
        self.fail("no vector has a rejected event")


class OwnRoom(ReadingCase):
    """What a test changes."""

    async def test_an_outlier_has_no_state(self) -> None:
        room_dag = dag(dag_names(SMALL)[0])
        create = room_dag.events[0]
        await self.one.persist(
            create.room_id, room_dag.version, [IncomingEvent(create, outlier=True)]
        )
        with self.assertRaisesRegex(EventIsOutlier, "outlier"):
            await self.store.state_ids_at(create.event_id)
        self.assertEqual((await self.store.event(create.event_id)).json, create.raw)
        with self.assertRaises(EventIsOutlier):
            await self.store.graph(create.room_id, until=create.event_id)


class KeptChains(TestCase):
    """Auth chains that a process keeps."""

    def setUp(self) -> None:
        self.memory = ChainMemory(max_rooms=2, max_events=1)
        self.room = RoomRow(1, "!a:a", "10", 1, 1, 0, None, b"")

    def test_chains_count_for_one_epoch_of_their_room(self) -> None:
        chains = BitSetChains()
        chains.add(SmallRoom("10").create)
        self.memory.put_back(self.room, chains)
        self.assertEqual(len(self.memory.take(self.room._replace(epoch=2))), 0)
        self.assertIs(self.memory.take(self.room._replace(revision=2)), chains)
        self.assertEqual(len(self.memory), 0)

    def test_chains_are_kept_of_few_rooms_and_few_events(self) -> None:
        small = SmallRoom("10")
        long = BitSetChains()
        for each in (small.create, small.alice):
            long.add(each)
        self.memory.put_back(self.room, long)
        self.assertEqual(len(self.memory), 0)
        for number in range(3):
            self.memory.put_back(self.room._replace(room_no=number), BitSetChains())
        self.assertEqual(len(self.memory), 2)


class DamagedRows(ReadingCase):
    """What is damaged is named, and never returned."""

    async def test_another_entry_does_not_fit_the_digest_whether_names_are_cached_or_not(
        self,
    ) -> None:
        room = await self.any_room()
        room_id = room.room_id
        assert room_id is not None
        await self.store.current_state_ids(room_id)
        self.sql(
            "UPDATE synrepl._state_groups SET changes = set_byte(changes, 7, get_byte(changes, 7) # 1)"
            " WHERE group_no = (SELECT current_group FROM synrepl._room_heads)"
        )
        for store in (self.store, RoomStore(self.database)):
            with self.assertRaises((CorruptState, NumberWithoutRow)):
                await store.current_state_ids(room_id)

    async def test_a_line_that_points_to_another_key_is_not_followed(self) -> None:
        room = await self.any_room()
        assert room.room_id is not None
        slot = self.sql("SELECT slot FROM synrepl._room_keys WHERE type = 'm.room.create'")
        self.sql(
            "UPDATE synrepl._state_line SET event_no = (SELECT max(event_no)"
            " FROM synrepl._room_events WHERE slot <> %s) WHERE slot = %s",
            slot,
            slot,
        )
        with self.assertRaisesRegex(CorruptState, "by the state line"):
            await self.store.current_state_ids(room.room_id, keys=[CREATE])

    async def test_bytes_that_changed_are_not_served(self) -> None:
        room = await self.any_room()
        event_id = next(iter(room)).event.event_id
        number = self.sql("SELECT event_no FROM synrepl._room_events WHERE event_id = %s", event_id)
        self.sql(
            "UPDATE synrepl._room_event_json SET raw = raw || ' '::bytea WHERE event_no = %s",
            number,
        )
        with self.assertRaisesRegex(CorruptEvent, "do not fit their checksum"):
            await self.store.event(event_id)
        self.sql("DELETE FROM synrepl._room_event_json WHERE event_no = %s", number)
        with self.assertRaises(MissingJson):
            await self.store.event(event_id)


class CachedNames(StoreCase):
    """What is cached about entries stays within its bound."""

    async def test_the_room_used_least_recently_goes_first(self) -> None:
        store = RoomStore(self.database, NamedEntries(max_entries=40))
        for name in dag_names(SMALL)[:6]:
            room_dag = dag(name)
            room_id = room_dag.events[0].room_id
            await self.one.persist(
                room_id, room_dag.version, [IncomingEvent(each, False) for each in room_dag.events]
            )
            for _ in range(2):
                state = await store.current_state_ids(room_id)
                self.assertEqual(state, await RoomStore(self.database).current_state_ids(room_id))
                self.assertLessEqual(len(store.names), 40)
