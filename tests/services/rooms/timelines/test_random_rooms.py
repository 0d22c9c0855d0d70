"""What a client learns of random rooms, by syncs and pages of history: everything it may see, and once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from simulator.rooms.random_rooms import USERS, RestlessRoom
from simulator.rooms.room_model import receive
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.positions.vector import PositionVector
from synrepl.rooms import Room, StateKey
from synrepl.services.rooms.timelines.client_filter import (
    ClientFilter,
    RoomEventFilter,
    RoomFilter,
)
from synrepl.services.rooms.timelines.room_tails import RoomTails
from synrepl.services.rooms.timelines.room_token import RoomToken
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.services.rooms.timelines.updates import (
    ClientEvent,
    RoomsUpdate,
    RoomTimeline,
    TimelineReader,
)
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from tests.services.rooms.timelines.gated_database import GatedDatabase
from tests.services.rooms.timelines.random_rooms_case import (
    RandomRoomsCase,
    live_events,
    visible_events,
)
from tests.services.world import manual_clock
from tests.storage.rooms.rooms_as_stored import as_stored
from tests.storage.rooms.written_rooms import WrittenEvent

ROOMS = int(os.environ.get("SYNREPL_ROOM_EXAMPLES", "30"))


class ModelClient:
    """A client of one user, who keeps what it is told of one room.

    :ivar shared: number of answers that were made of tails
    :ivar events: IDs of the events that it was told of since it saw the room first, in the order of their telling
    :ivar state: the room's state as it knows it
    """

    def __init__(
        self, timelines: Timelines, user: str, room_id: str, limit: int, *, state_after: bool
    ) -> None:
        self._timelines = timelines
        self._scheduler: Any = timelines.clock
        self._room_id = room_id
        self._state_after = state_after
        self.reader = TimelineReader(user)
        self.since: PositionVector | None = None
        self.shared = 0
        self.wanted = ClientFilter(
            room=RoomFilter(include_leave=True, timeline=RoomEventFilter(limit=limit))
        )
        self.events: list[str] = []
        self.state: dict[StateKey, str] = {}
        self.overridden: set[StateKey] = set()
        self.is_in = False

    async def sync(self, upto: PositionVector, *, memberships_changed: bool = True) -> None:
        """Sync once, and fill the gap if there is one."""
        since = self.since
        if since is None:
            update = await self._timelines.initial(
                self.reader, upto, self.wanted, state_after=self._state_after
            )
        else:
            update = await self._timelines.since(
                self.reader, since, upto, None, self.wanted, state_after=self._state_after
            )
            if not memberships_changed:
                await self._compare_shared(since, upto, update)
        assert not update.damaged, update.damaged
        assert update.upto is not None
        assert upto.covers(update.upto)
        upto = self.since = update.upto if since is None else update.upto.merge(since)
        joined = update.joined.get(self._room_id)
        if joined is not None:
            is_new = since is None or joined.is_new
            await self._take(joined.timeline, joined.state, upto, None if is_new else since)
            self.is_in = True
        left = update.left.get(self._room_id)
        if left is not None:
            await self._take(left.timeline, left.state, upto, since if self.is_in else None)
            self.is_in = False

    async def _compare_shared(
        self, since: PositionVector, upto: PositionVector, expected: RoomsUpdate
    ) -> None:
        """An answer made of a tail is that made of the tables."""
        database: Any = GatedDatabase(self._timelines.database)
        timelines = replace(
            self._timelines, database=database, tails=RoomTails(self._scheduler, database)
        )
        for _ in range(2):
            found = await timelines.since(
                self.reader,
                since,
                upto,
                [self._room_id],
                self.wanted,
                memberships_changed=False,
                state_after=self._state_after,
            )
            assert found == expected, (found, expected)
        self.shared += "sync" not in database.names

    async def _take(
        self,
        timeline: RoomTimeline,
        state: Sequence[ClientEvent],
        upto: PositionVector,
        since: PositionVector | None,
    ) -> None:
        older: list[str] = []
        if since is None:
            self.events.clear()
            self.state.clear()
            self.overridden.clear()
        if timeline.limited:
            older = [each.event_id for each in await self.history(timeline.prev_batch, upto, since)]
        self.events += [*reversed(older), *(each.event_id for each in timeline.events)]
        if not self._state_after:
            self._apply(state)
            self._apply(timeline.events)
        else:
            self._apply(state)

    def _apply(self, events: Iterable[ClientEvent]) -> None:
        for each in events:
            if each.state_key is not None:
                self.state[each.type, each.state_key] = each.event_id

    async def history(
        self, start: RoomToken, upto: PositionVector, end: PositionVector | None
    ) -> list[ClientEvent]:
        """All events on the pages from a token back."""
        found: list[ClientEvent] = []
        token: RoomToken | None = start
        while token is not None:
            page = await self._timelines.messages(
                self.reader,
                self._room_id,
                upto,
                RoomToken.parse(str(token)),
                end,
                limit=3,
            )
            found += page.events
            assert page.end is None or page.end != token
            token = page.end
        return found


class RandomRooms(RandomRoomsCase):
    """Random rooms, persisted by two processes while clients sync."""

    timeout = 900 + 5 * ROOMS

    async def test_clients_learn_everything_that_they_may_see_once(self) -> None:
        two = await self.start_process("two")
        seen = shared = 0
        for seed in range(ROOMS):
            count, from_tails = await self.check(seed, [self.one, two])
            seen += count
            shared += from_tails
        self.assertGreater(seen, ROOMS)
        self.assertGreater(shared, ROOMS)

    async def check(self, seed: int, processes: Sequence[Any]) -> tuple[int, int]:
        """One room; the number of events that clients saw, and that of answers made of tails."""
        rng = Random(seed)
        version = rng.choice(["1", "6", "10", "11"])
        made = RestlessRoom(rng, version, f"room{seed}")
        room = Room(made.version)
        clock = TwistedScheduler(manual_clock())
        timelines = Timelines(self.database, clock, RoomTails(clock, self.database))
        clients = [
            ModelClient(timelines, user, made.room_id, rng.choice([1, 2, 5, 50]), state_after=after)
            for user in USERS
            for after in (False, True)
        ]
        self.last = {"one": 0, "two": 0}
        for number in range(rng.randrange(2, 7)):
            part = made.more(rng.randrange(1, 15)) if number else [*made.events, *made.more(8)]
            is_history = number > 0 and rng.random() < 0.2
            process = rng.choice(processes)
            incoming = [IncomingEvent(each, backfilled=is_history) for each in part]
            await process.persist(made.room_id, made.version, incoming)
            for each in incoming:
                receive(room, each)
            upto = await self.vector(rng)
            for client in clients:
                if rng.random() < 0.6:
                    has_moved = await self.has_moved(made.room_id, client)
                    await client.sync(upto, memberships_changed=has_moved)
        upto = await self.vector(rng, everything=True)
        count = 0
        expected = await self.read(lambda txn: as_stored(txn, room))
        for client in clients:
            await client.sync(upto)
            count += await self.compare(seed, client, upto, expected, room)
        return count, sum(client.shared for client in clients)

    async def has_moved(self, room_id: str, client: ModelClient) -> bool:
        """Whether a user may not have been in the room all the time since the last sync."""
        user, since = client.reader.user_id, client.since
        facts = await self.read(
            lambda txn: txn.execute(
                "SELECT stream_id, writer FROM synrepl.events WHERE room_id = %s AND kind <> 'ev'"
                " AND (kind = 'state-all' OR type = 'm.room.member' AND state_key = %s)",
                (room_id, user),
            ).fetchall()
        )
        is_in = await self.read(
            lambda txn: (
                txn.execute(
                    "SELECT membership FROM synrepl._memberships JOIN synrepl._rooms USING (room_no)"
                    " WHERE room_id = %s AND user_id = %s",
                    (room_id, user),
                ).fetchall()
                == [("join",)]
            )
        )
        return since is None or not is_in or any(token > since[by] for token, by in facts)

    async def compare(
        self, seed: int, client: ModelClient, upto: PositionVector, expected: Any, room: Room
    ) -> int:
        """A client knows what it may, once, in an order of causes first; and the state."""
        visible = visible_events(expected, client.reader.user_id)
        membership = await self.membership(str(room.room_id), client.reader.user_id)
        where = (seed, client.reader.user_id, client.wanted.room.timeline.limit)
        self.assertEqual(len(client.events), len(set(client.events)), where)
        self.assertTrue(set(client.events) <= visible.keys(), where)
        if membership != "join":
            self.assertFalse(client.is_in, where)
            return len(client.events)
        self.assertTrue(client.is_in, where)
        self.check_order(client.events, visible, where)
        live = live_events(visible)
        self.assertEqual(live - set(client.events), set(), where)
        fresh = ModelClient(
            client._timelines, client.reader.user_id, client._room_id, 4, state_after=True
        )
        await fresh.sync(upto)
        self.assertEqual(sorted(fresh.events), sorted(visible), where)
        places = {event_id: place for place, event_id in enumerate(fresh.events)}
        for event_id, place in places.items():
            for prev in visible[event_id].event.prev_event_ids:
                # What came as history stands before what came live, even if it follows that.
                if prev in places and not live >= {prev} > live & {event_id}:
                    self.assertLess(places[prev], place, where)
        current = dict(room.current_state().items())
        self.assertEqual(fresh.state, current, where)
        if client._state_after:
            self.assertEqual(
                {k: v for k, v in client.state.items() if k in current}, current, where
            )
        return len(client.events)

    def check_order(
        self, events: Sequence[str], visible: Mapping[str, WrittenEvent], where: object
    ) -> None:
        """No event was told before one that it follows, and that came before it."""
        places = {event_id: place for place, event_id in enumerate(events)}
        for event_id, place in places.items():
            event = visible[event_id]
            for prev_id in event.event.prev_event_ids:
                if prev_id not in places:
                    continue
                prev = visible[prev_id]
                assert event.ordering is not None
                assert prev.ordering is not None
                if 0 < prev.ordering.stream < event.ordering.stream:
                    self.assertLess(places[prev_id], place, where)
