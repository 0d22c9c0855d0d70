"""What clients learn of random rooms by sliding sync and pages of history: all that they may see, and once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from simulator.rooms.random_rooms import USERS, RestlessRoom
from simulator.rooms.room_model import receive
from synrepl.positions.vector import PositionVector
from synrepl.rooms import Room, StateKey
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.rooms.sliding.required_state import RequiredState
from synrepl.services.rooms.sliding.room_results import RoomResult
from synrepl.services.rooms.sliding.sliding_pos import SlidingPos
from synrepl.services.rooms.sliding.sliding_request import RoomRule, RoomWindows, SlidingRequest
from synrepl.services.rooms.timelines.room_tails import RoomTails
from synrepl.services.rooms.timelines.room_token import RoomToken
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.services.rooms.timelines.updates import TimelineReader
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from tests.services.rooms.sliding.answering_process import SERVER, AnsweringProcess
from tests.services.rooms.timelines.random_rooms_case import (
    RandomRoomsCase,
    live_events,
    visible_events,
)
from tests.storage.rooms.rooms_as_stored import as_stored

WORLDS = int(os.environ.get("SYNREPL_ROOM_EXAMPLES", "20"))

ROOMS = 4

#: Wanted states, from nothing to everything.
STATES = (
    RequiredState(),
    RequiredState(lazy_members=True),
    RequiredState(frozenset({("m.room.topic", ""), ("m.room.member", None)})),
    RequiredState(frozenset({(None, "")}), lazy_members=True),
    RequiredState(frozenset({(None, None)})),
)
EVERYTHING = STATES[-1]


class KnownRoom:
    """What a client knows of a room.

    :ivar events: IDs of events, in the order of their telling
    :ivar state: as far as the client has asked for it
    :ivar told_at: the token of the last answer that had the room
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.state: dict[StateKey, str] = {}
        self.told_at: PositionVector | None = None
        self.membership = ""


class ModelConnection:
    """A client that keeps what it is told on one connection."""

    def __init__(self, rng: Random, user: str, timelines: Timelines) -> None:
        self._rng = rng
        self._timelines = timelines
        self.identity = ClientIdentity(user, f"D{rng.randrange(1_000_000)}")
        self.pos: str | None = None
        self.rooms: dict[str, KnownRoom] = {}

    async def slide(
        self,
        process: AnsweringProcess,
        lists: Mapping[str, RoomWindows],
        subscriptions: Mapping[str, RoomRule],
        *,
        is_lost: bool = False,
    ) -> bool:
        """Ask once, and fill gaps; whether anything was told.

        :param is_lost: whether the answer does not arrive
        """
        request = SlidingRequest("c", self.pos, 0.0, lists, subscriptions)
        answer = await process.ask(self.identity, request)
        if is_lost:
            return True
        self.pos = answer.pos
        upto = SlidingPos.parse(answer.pos, SERVER).token.events
        for room_id, result in answer.rooms.items():
            await self._take(room_id, result, upto)
        return bool(answer.rooms)

    async def _take(self, room_id: str, result: RoomResult, upto: PositionVector) -> None:
        known = self.rooms.get(room_id)
        if known is None or result.is_initial:
            assert result.is_initial, room_id
            known = self.rooms[room_id] = KnownRoom()
        known.membership = result.membership
        told = [each.event_id for each in result.timeline]
        before = known.told_at
        known.told_at = upto
        if result.is_expanded:
            # Only history that came later may be older than what the client knows.
            first = result.timeline[0]
            assert first.event_id in known.events or (first.stream_id or 0) < 0, room_id
            known.events += [each for each in told if each not in known.events]
        else:
            if result.is_limited:
                assert result.prev_batch is not None
                known.events += reversed(
                    await self._history(room_id, result.prev_batch, upto, before)
                )
            known.events += told
        for each in result.state:
            assert each.state_key is not None
            known.state[each.type, each.state_key] = each.event_id
        for key in result.removed:
            known.state.pop(key, None)

    async def _history(
        self, room_id: str, start: RoomToken, upto: PositionVector, end: PositionVector | None
    ) -> Sequence[str]:
        """All events on the pages from a token back."""
        reader = TimelineReader(*self.identity)
        found: list[str] = []
        token: RoomToken | None = RoomToken.parse(str(start))
        while token is not None:
            page = await self._timelines.messages(reader, room_id, upto, token, end, limit=3)
            found += [each.event_id for each in page.events]
            token = page.end
        return found


class RandomConnections(RandomRoomsCase):
    """Random rooms, persisted by two processes, while connections go from one process that answers to another."""

    timeout = 900

    async def test_clients_learn_everything_that_they_may_see_once(self) -> None:
        two = await self.start_process("two")
        seen = 0
        for seed in range(WORLDS):
            seen += await self.check(seed, [self.one, two])
        self.assertGreater(seen, WORLDS)

    async def check(self, seed: int, writers: Sequence[Any]) -> int:
        """Some rooms; the number of events that clients saw."""
        rng = Random(seed)
        version = rng.choice(["6", "10", "11"])
        made = [RestlessRoom(rng, version, f"room{seed}.{n}") for n in range(ROOMS)]
        rooms = {each.room_id: Room(each.version) for each in made}
        clock: Any = self.one.process.scheduler
        timelines = Timelines(self.database, clock, RoomTails(clock, self.database))
        processes = [AnsweringProcess(self.one.process) for _ in range(2)]
        clients = [ModelConnection(rng, rng.choice(USERS), timelines) for _ in range(7)]
        self.last = {"one": 0, "two": 0}
        begun: set[str] = set()
        for _ in range(rng.randrange(8, 20)):
            part = rng.choice(made)
            events = part.more(rng.randrange(1, 10))
            if part.room_id not in begun:
                begun.add(part.room_id)
                events = [*part.events]
            is_history = len(events) < 8 and rng.random() < 0.1
            incoming = [IncomingEvent(each, backfilled=is_history) for each in events]
            await rng.choice(writers).persist(part.room_id, part.version, incoming)
            for each in incoming:
                receive(rooms[part.room_id], each)
            upto = await self.vector(rng)
            for process in rng.sample(processes, rng.randrange(1, 3)):
                await process.apply(upto)
            for client in clients:
                if rng.random() < 0.5:
                    await self.ask(rng, client, processes, rooms)
        upto = await self.vector(rng, everything=True)
        for process in processes:
            await process.apply(upto)
        count = 0
        for client in clients:
            rule = RoomRule(rng.choice([1, 3, 50]), EVERYTHING)
            while await client.slide(rng.choice(processes), {"all": RoomWindows(rule)}, {}):
                pass
        for room_id in begun:
            expected = await self.read(lambda txn, each=rooms[room_id]: as_stored(txn, each))
            for client in clients:
                count += await self.compare(seed, client, room_id, rooms[room_id], expected)
        return count

    async def ask(
        self,
        rng: Random,
        client: ModelConnection,
        processes: Sequence[AnsweringProcess],
        room_ids: Iterable[str],
    ) -> None:
        """A request with random windows and subscriptions, whose answer may be lost."""
        able = [
            each
            for each in processes
            if client.pos is None
            or await each.may_answer(SlidingPos.parse(client.pos, SERVER).token)
        ]
        lists = {}
        for name in ("a", "b")[: rng.randrange(3)]:
            first = rng.choice([0, 0, 0, 1])
            ranges = ((first, first + rng.randrange(3)),) if rng.random() < 0.8 else None
            lists[name] = RoomWindows(self.rule(rng), ranges)
        subscriptions = {each: self.rule(rng) for each in room_ids if rng.random() < 0.15}
        is_lost = rng.random() < 0.2
        await client.slide(rng.choice(able), lists, subscriptions, is_lost=is_lost)
        if is_lost and rng.random() < 0.5:
            await client.slide(rng.choice(able), lists, subscriptions)

    def rule(self, rng: Random) -> RoomRule:
        """What is wanted of a room."""
        return RoomRule(rng.choice([0, 1, 2, 5, 50]), rng.choice(STATES))

    async def compare(
        self, seed: int, client: ModelConnection, room_id: str, room: Room, expected: Any
    ) -> int:
        """A client knows what it may of a room, once; and the state."""
        user = client.identity.user_id
        visible = visible_events(expected, user)
        known = client.rooms.get(room_id)
        where = (seed, user, client.identity.device_id, room_id)
        membership = await self.membership(room_id, user)
        if membership == "join":
            assert known is not None, where
            self.assertEqual(known.membership, "join", where)
            self.assertEqual(live_events(visible) - set(known.events), set(), where)
            self.assertEqual(known.state, dict(room.current_state().items()), where)
        if known is None:
            return 0
        self.assertEqual(_repeated(known.events), [], where)
        self.assertTrue(set(known.events) <= visible.keys(), where)
        return len(known.events)


def _repeated(events: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [each for each in events if each in seen or seen.add(each)]  # type: ignore[func-returns-value]
