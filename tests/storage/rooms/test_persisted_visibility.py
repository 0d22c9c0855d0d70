"""What users see of rooms that were persisted: the persister places events where pages look for them."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.rooms.random_rooms import USERS, RandomRoom, RestlessRoom
from simulator.rooms.room_model import receive
from synrepl.rooms import Room, Viewer
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.event_places_rebuild import rebuild_event_places
from synrepl.storage.rooms.maintenance.line_rebuild import rebuild_lines
from synrepl.storage.rooms.states.state_line import MAX_OVERLAY
from synrepl.storage.rooms.tables.events import events_by_id
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.rooms.tables.numbers import require_room
from synrepl.storage.rooms.visibility.audience import BESIDE_BIT, FIRST_BIT, NEAR_BIT
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.blocking_store import BlockingPersister, RecordedFacts
from tests.storage.rooms.rooms_as_stored import as_stored
from tests.storage.rooms.store_case import StoreCase
from tests.storage.rooms.test_persisting_machine import seeds
from tests.storage.rooms.test_visibility import RoomCase

EXAMPLES = int(os.environ.get("SYNREPL_ROOM_EXAMPLES", "30"))

_PLACES = BESIDE_BIT | FIRST_BIT | NEAR_BIT

_viewers = st.builds(
    Viewer,
    st.sampled_from([*USERS, "@stranger:z"]),
    st.booleans(),
    st.frozensets(st.sampled_from(USERS), max_size=1),
)

#: Batches: events in it, whether they come in another order, and as history, and after a restart.
_batches = st.lists(
    st.tuples(
        st.integers(1, 25),
        st.booleans(),
        st.sampled_from([False, False, False, True]),
        st.booleans(),
    ),
    min_size=2,
    max_size=6,
)


class PersistedRooms(RoomCase):
    """Random rooms, through the persister."""

    timeout = 600

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        facts = RecordedFacts()
        self.processes = [BlockingPersister(self.dsn, name, facts) for name in ("one", "two")]
        for process in self.processes:
            self.addCleanup(process.database.close)
        #: Events by their place, in all rooms.
        self.seen: dict[int, int] = {}

    def persist(
        self, made: RandomRoom, batches: Sequence[tuple[int, bool, bool, bool]], rng: Random
    ) -> Room:
        """Persist a room in turn by two processes, as the model gets it."""
        room = Room(made.version)
        for number, (size, is_mixed, is_history, is_restart) in enumerate(batches):
            part = made.more(size) if number else [*made.events, *made.more(size)]
            if is_mixed:
                rng.shuffle(part)
            incoming = [IncomingEvent(each, backfilled=is_history and number > 0) for each in part]
            process = self.processes[number % 2]
            if is_restart:
                process.forget()
            process.persist(made.room_id, made.version, incoming)
            for each in incoming:
                receive(room, each)
        return room

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        seeds,
        st.sampled_from(["1", "6", "10", "11"]),
        _batches,
        st.lists(_viewers, min_size=2, max_size=3),
        st.sampled_from([2, MAX_OVERLAY]),
        st.sampled_from([3, 7, 20, 61]),
    )
    def check_random_rooms(
        self,
        seed: int,
        version: str,
        batches: Sequence[tuple[int, bool, bool, bool]],
        viewers: Sequence[Viewer],
        max_overlay: int,
        size: int,
    ) -> None:
        self.processes[0].empty()
        self.processes[1].forget()
        rng = Random(seed)
        with patch("synrepl.storage.rooms.states.state_line.MAX_OVERLAY", max_overlay):
            room = self.persist(RestlessRoom(rng, version), batches, rng)
            self.database.run("check", partial(self.check, room, viewers, size))
            self.database.run("rebuild", partial(self.check_rebuilt, room, viewers[:1], size))

    def check(self, room: Room, viewers: Collection[Viewer], size: int, txn: Transaction) -> None:
        """Compare every verdict and page."""
        expected = as_stored(txn, room)
        for viewer in viewers:
            self.assert_users_verdicts(txn, expected, viewer, ())
            self.assert_pages(txn, expected, viewer, (), size)
        for kept in expected.events:
            if kept.ordering is not None:
                place = kept.packed & _PLACES
                self.seen[place] = self.seen.get(place, 0) + 1

    def check_rebuilt(
        self, room: Room, viewers: Collection[Viewer], size: int, txn: Transaction
    ) -> None:
        """Places that are found again are the same; lines that are made again may be others."""
        assert room.room_id is not None
        row = require_room(txn, room.room_id)
        _places_again(txn, row)
        rebuild_lines(txn, row)
        self.check(room, viewers, size, txn)

    def test_pages_have_what_the_rules_show_of_rooms_that_were_persisted(self) -> None:
        self.check_random_rooms()
        self.assertEqual(self.seen.keys(), {0, FIRST_BIT, NEAR_BIT, BESIDE_BIT})


def _places_again(txn: Transaction, room: Any) -> None:
    """Find the places again: they are the same."""
    text = (
        "SELECT event_no, audience, array(SELECT slot FROM synrepl._branch_memberships b"
        "  WHERE b.event_no = e.event_no ORDER BY slot), reach FROM synrepl._room_events e"
        " WHERE room_no = %s ORDER BY event_no"
    )
    before = txn.execute(text, (room.room_no,)).fetchall()
    rebuild_event_places(txn, room)
    after = txn.execute(text, (room.room_no,)).fetchall()
    for old, new in zip(before, after, strict=True):
        assert old[:3] == new[:3], (old, new)
        # After a restart the highest ordering of all events counts, also of those beside the line.
        assert (old[3] or 0) >= (new[3] or 0), (old, new)


class PlacesOfEvents(StoreCase):
    """A few events, through the real persister and its writer."""

    async def test_events_are_placed_on_the_line_near_it_and_beside_it(self) -> None:
        small = SmallRoom("10")
        made = [*small.base, small.carol]
        topic = small.topic(small.carol)
        message = small.message(topic)
        branch = small.message(small.carol)
        await self.one.persist(made[0].room_id, small.version, [*made, topic, message])
        self.one.forget()
        await self.one.persist(made[0].room_id, small.version, [branch])
        late = small.message(small.alice)
        incoming = [IncomingEvent(late, live=False, backfilled=True)]
        await self.one.persist(made[0].room_id, small.version, incoming)
        events = [small.carol, topic, message, branch, late]
        rows = await self.read(lambda txn: events_by_id(txn, [each.event_id for each in events]))
        places = [(rows[each.event_id].audience or 0) & _PLACES for each in events]
        self.assertEqual(places, [FIRST_BIT, FIRST_BIT, 0, NEAR_BIT, BESIDE_BIT])

    async def test_places_that_are_lost_come_back_with_the_lines(self) -> None:
        small = SmallRoom("10")
        events = [*small.base, small.carol, small.topic(small.carol), small.message(small.rules)]
        room_id = events[0].room_id
        await self.one.persist(room_id, small.version, events)
        audiences = "SELECT array_agg(audience ORDER BY event_no) FROM synrepl._room_events"
        branches = "SELECT array_agg(b)::text FROM synrepl._branch_memberships b"
        before = self.sql(audiences), self.sql(branches)
        self.assertEqual([each & _PLACES for each in before[0]][-2:], [FIRST_BIT, NEAR_BIT])
        self.assertIsNotNone(before[1])
        self.sql(f"UPDATE synrepl._room_events SET audience = audience & ~{_PLACES} | {BESIDE_BIT}")
        self.assertNotEqual(self.sql(audiences), before[0])
        await self.read(lambda txn: rebuild_lines(txn, require_room(txn, room_id)))
        self.assertEqual((self.sql(audiences), self.sql(branches)), before)

    async def test_a_room_whose_events_have_one_order_has_no_event_beside_the_line(self) -> None:
        small = SmallRoom("10")
        events = [*small.base, small.carol]
        for number in range(150):
            made = small.message if number % 3 else small.topic
            events.append(made(events[-1]))
        for at in range(0, len(events), 7):
            await self.one.persist(events[0].room_id, small.version, events[at : at + 7])
        count = f"SELECT count(*) FROM synrepl._room_events WHERE audience & {BESIDE_BIT | NEAR_BIT} <> 0"
        self.assertEqual(self.sql(count), 0)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._branch_memberships"), 0)
