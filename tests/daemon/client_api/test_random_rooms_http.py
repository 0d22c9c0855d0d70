"""Random rooms over HTTP: what syncs and pages show together is what the rules allow, each event once, causes first."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from simulator.rooms.random_rooms import USERS, RestlessRoom
from simulator.rooms.room_model import receive
from synrepl.rooms import Room, Sight, StateKey, Viewer
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from tests.daemon.client_api.posted_rooms import PostedRoomsCase, RoomClient, state_ids
from tests.storage.rooms.rooms_as_stored import as_stored
from tests.storage.rooms.test_visibility import expected_verdict
from tests.storage.rooms.written_rooms import WrittenEvent

#: Rooms; `tox -e rooms` takes 200.
COUNT = int(os.environ.get("SYNREPL_ROOM_EXAMPLES", "3"))

Seen = Mapping[str, WrittenEvent]


class SyncedRoom:
    """What a client learns of one room.

    :ivar events: IDs since it was told of the room as a new one, in the order of the telling
    :ivar state: with ``use_state_after``, the state as it knows it
    """

    def __init__(self, client: RoomClient, room_id: str, limit: int, *, state_after: bool) -> None:
        self.client = client
        self._room_id = room_id
        self._filter = f'{{"room":{{"timeline":{{"limit":{limit}}}}}}}'
        self.state_after = state_after
        self._since: str | None = None
        self.is_in = False
        self.events: list[str] = []
        self.state: dict[StateKey, str] = {}

    async def sync(self) -> None:
        """Sync once, and fill the gap if there is one."""
        since = self._since
        answer = await self.client.get(
            "/sync",
            since=since,
            filter=self._filter,
            use_state_after="true" if self.state_after else None,
        )
        self._since = answer["next_batch"]
        rooms = answer.get("rooms", {})
        joined = rooms.get("join", {}).get(self._room_id)
        if joined is not None:
            if not self.is_in:
                self.events, self.state, since = [], {}, None
            await self._take(joined, since)
            self.is_in = True
        left = rooms.get("leave", {}).get(self._room_id)
        if left is not None and self.is_in:
            await self._take(left, since)
        if left is not None or self._room_id in {
            **rooms.get("invite", {}),
            **rooms.get("knock", {}),
        }:
            self.is_in = False

    async def _take(self, room: Mapping[str, Any], since: str | None) -> None:
        timeline = room["timeline"]
        older: list[Any] = []
        if timeline["limited"]:
            older = await self.client.pages(self._room_id, timeline["prev_batch"], since, limit=3)
        self.events += [e["event_id"] for e in (*reversed(older), *timeline["events"])]
        if self.state_after:
            self.state |= state_ids(room["state_after"]["events"])


class RandomRoomsOverHttp(PostedRoomsCase):
    """Rooms that come in batches, live and as history, while clients sync."""

    async def test_syncs_and_pages_show_each_event_once(self) -> None:
        seen = 0
        for seed in range(COUNT):
            seen += await self.check(seed)
        self.assertGreater(seen, 3 * COUNT)

    async def check(self, seed: int) -> int:
        """One room; the number of events that clients saw."""
        rng = Random(seed)
        made = RestlessRoom(rng, rng.choice(["1", "6", "10", "12"]), f"http{seed}")
        room = Room(made.version)
        clients = [
            SyncedRoom(
                self.client(user, f"D{seed}"),
                made.room_id,
                rng.choice([1, 2, 5, 50]),
                state_after=rng.random() < 0.5,
            )
            for user in USERS
        ]
        for number in range(rng.randrange(3, 7)):
            part = made.more(rng.randrange(1, 15)) if number else [*made.events, *made.more(8)]
            is_history = number > 0 and rng.random() < 0.2
            await self.post(part, made.version.name, "history" if is_history else "live")
            for each in part:
                receive(room, IncomingEvent(each, not is_history, is_history))
            for client in clients:
                if rng.random() < 0.6:
                    await client.sync()
        expected = await self.database.run("expected", lambda txn: as_stored(txn, room))
        count = 0
        for client in clients:
            await client.sync()
            count += await self.compare(seed, client, room, expected.events)
        return count

    async def compare(
        self, seed: int, client: SyncedRoom, room: Room, kept: Sequence[WrittenEvent]
    ) -> int:
        """A client was told what it may, once, in an order of causes first; and the state."""
        user = client.client.token.partition(" ")[0] if client.client.token else ""
        visible: dict[str, WrittenEvent] = {}
        for each in kept:
            verdict = expected_verdict(each, Viewer(user), ())
            if verdict is not None and verdict[0].sight is not Sight.HIDDEN and each.ordering:
                visible[each.event.event_id] = each
        where = (seed, user)
        self.assertEqual(len(client.events), len(set(client.events)), where)
        self.assertTrue(set(client.events) <= visible.keys(), where)
        self.check_order(client.events, visible, where)
        current = dict(room.current_state().items())
        member = current.get(("m.room.member", user))
        is_joined = member is not None and room[member].event.membership == "join"
        self.assertEqual(client.is_in, is_joined, where)
        if not is_joined:
            return len(client.events)
        live = {e for e, each in visible.items() if each.ordering and each.ordering.stream > 0}
        self.assertEqual(live - set(client.events), set(), where)
        if client.state_after:
            self.assertEqual({k: client.state.get(k) for k in current}, current, where)
        new = SyncedRoom(client.client, client._room_id, 4, state_after=True)
        await new.sync()
        self.assertEqual(sorted(new.events), sorted(visible), where)
        self.assertEqual(new.state, current, where)
        self.check_order(new.events, visible, where)
        return len(client.events)

    def check_order(self, events: Sequence[str], visible: Seen, where: object) -> None:
        """No event was told before one that it follows, and that came before it."""
        places = {event_id: place for place, event_id in enumerate(events)}
        for event_id, place in places.items():
            event = visible[event_id]
            for prev_id in event.event.prev_event_ids:
                if prev_id not in places:
                    continue
                prev = visible[prev_id].ordering
                assert event.ordering is not None
                assert prev is not None
                if 0 < prev.stream < event.ordering.stream:
                    self.assertLess(places[prev_id], place, where)
