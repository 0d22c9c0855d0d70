"""Random walks of windows, subscriptions and filters, compared with a simple model of what a client has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.news.news import News
from synrepl.services.rooms.news.sync_token import SyncToken, server_tag
from synrepl.services.rooms.sliding import sliding_plan
from synrepl.services.rooms.sliding.connection_state import (
    WHOLE,
    ConnectionState,
    RoomRecord,
    ToldOf,
)
from synrepl.services.rooms.sliding.required_state import RequiredState
from synrepl.services.rooms.sliding.room_labels import RoomLabels
from synrepl.services.rooms.sliding.room_lists import ListedRoom, UserRooms
from synrepl.services.rooms.sliding.sliding_plan import PlannedFrom, SlidingPlan, make_plan
from synrepl.services.rooms.sliding.sliding_request import (
    ListFilter,
    RoomRule,
    RoomWindows,
    SlidingRequest,
)
from synrepl.storage.rooms.timelines.user_rooms import UserRoom

SERVER = "x"
ROOMS = range(1, 13)
STATES = (
    RequiredState(),
    RequiredState(frozenset({("a", None)})),
    RequiredState(frozenset({(None, None)})),
)
EVERYTHING = STATES[-1]


class World:
    """The rooms of a user, and when something happened in each.

    :ivar now: the last token
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.now = 0
        self.events: dict[int, list[int]] = defaultdict(list)
        self.direct = frozenset(f"!{n}" for n in ROOMS if rng.random() < 0.3)
        self.types = {n: rng.choice([None, "m.space"]) for n in ROOMS}
        self.encrypted = {n: rng.random() < 0.5 for n in ROOMS}
        self.partial = {n for n in ROOMS if rng.random() < 0.2}
        self.happen(ROOMS)

    def happen(self, rooms: Iterable[int]) -> None:
        """An event in each room."""
        for number in rooms:
            self.now += 1
            self.events[number].append(self.now)

    def move(self, room: int) -> None:
        """A room becomes complete, or partial again: something that happens in it."""
        self.partial ^= {room}
        self.happen([room])

    def token(self) -> SyncToken:
        """The token of now."""
        return SyncToken(server_tag(SERVER), PositionVector(linear=self.now))

    def listed(self) -> UserRooms:
        """The list of the rooms."""
        rooms = [
            ListedRoom(
                UserRoom(
                    *(n, f"!{n}", "10", 0, "join", n, 1, True, self.events[n][-1], 1, 0, 0, False),
                    is_partial=n in self.partial,
                    completed=0,
                ),
                self.events[n][-1],
                False,
            )
            for n in ROOMS
        ]
        ordered = sorted(rooms, key=lambda each: -each.activity)
        return UserRooms(
            PositionVector(linear=self.now),
            tuple(ordered),
            frozenset(ROOMS),
            self.types,
            self.encrypted,
        )

    def may_have(self, room: int, rule: RoomRule) -> bool:
        """Whether a room is told to who wants that of it."""
        return room not in self.partial or rule.required != EVERYTHING

    def matching(self, windows: RoomWindows) -> list[int]:
        """The rooms of a list, the most recently active first."""
        wanted = windows.filters
        return [
            n
            for n in sorted(ROOMS, key=lambda n: -self.events[n][-1])
            if self.may_have(n, windows.rule)
            and (wanted.is_dm is None or wanted.is_dm == (f"!{n}" in self.direct))
            and (wanted.is_encrypted in (None, self.encrypted[n]))
            and self.types[n] not in wanted.not_room_types
        ]

    def request(self) -> SlidingRequest:
        """Any request."""
        rng = self.rng

        def rule() -> RoomRule:
            return RoomRule(rng.choice([0, 1, 5, 20]), rng.choice(STATES))

        lists = {}
        for name in "abc"[: rng.randrange(4)]:
            wanted = ListFilter(
                rng.choice([None, None, True, False]),
                is_encrypted=rng.choice([None, None, True, False]),
                not_room_types=frozenset(rng.choice([(), ("m.space",), (None,)])),
            )
            starts = [rng.randrange(14) for _ in range(rng.randrange(3))]
            ranges = tuple((each, each + rng.randrange(6)) for each in starts)
            lists[name] = RoomWindows(rule(), rng.choice([None, ranges, ranges]), wanted)
        subscriptions = {f"!{rng.randrange(1, 16)}": rule() for _ in range(rng.randrange(3))}
        return SlidingRequest(lists=lists, subscriptions=subscriptions)

    def wanted(self, request: SlidingRequest) -> dict[int, RoomRule]:
        """The rooms that a request wants, each with what it wants."""
        rules: dict[int, list[RoomRule]] = defaultdict(list)
        for windows in request.lists.values():
            found = self.matching(windows)
            for place, number in enumerate(found):
                ranges = windows.ranges
                if ranges is None or any(first <= place <= last for first, last in ranges):
                    rules[number].append(windows.rule)
        for room_id, rule in request.subscriptions.items():
            number = int(room_id[1:])
            if number in ROOMS and self.may_have(number, rule):
                rules[number].append(rule)
        combined = {}
        for number, each in rules.items():
            required = each[0].required
            for other in each[1:]:
                required |= other.required
            combined[number] = RoomRule(max(e.timeline_limit for e in each), required)
        return combined


class ModelConnection:
    """A client's connection, and the simplest account of what it has: all events that it was told of.

    :ivar told: by room, the last event that the client was told of
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.since: SyncToken | None = None
        self.state = ConnectionState()
        self.told: dict[int, int] = {}

    def ask(self, case: SynchronousTestCase, *, is_lost: bool) -> None:
        """A request, and its answer."""
        world, request = self.world, self.world.request()
        since = 0 if self.since is None else self.since.events.linear
        changed = frozenset(f"!{n}" for n in ROOMS if world.events[n][-1] > since)
        news = News(rooms=changed if world.rng.random() < 0.8 else None)
        labels = RoomLabels(world.direct)
        state = ConnectionState.unpacked(self.state.packed(), 1)
        plan = make_plan(
            PlannedFrom(request, state, world.listed(), labels, self.since, news, SERVER)
        )
        wanted = world.wanted(request)
        case.assertEqual({n: each.rule for n, each in plan.matched.items()}, wanted)
        counts = {k: len(world.matching(each)) for k, each in request.lists.items()}
        case.assertEqual(plan.counts, counts)
        records = self.check(case, plan, wanted)
        if not is_lost:
            self.since = world.token()
            self.state = state.updated({**plan.records, **records}, plan.matched)
            self.told |= dict.fromkeys(records, world.now)

    def check(
        self, case: SynchronousTestCase, plan: SlidingPlan, wanted: Mapping[int, RoomRule]
    ) -> dict[int, RoomRecord]:
        """What is read of each room is what the client lacks; the records after it."""
        events = self.world.events
        read = {each.room.room_no: each for each in plan.to_read}
        case.assertLessEqual(read.keys(), wanted.keys())
        case.assertEqual(
            plan.is_complete,
            len(plan.to_read) < sliding_plan.MAX_TOLD
            or not (wanted.keys() - read.keys() - self.up_to_date(wanted)),
        )
        for number in wanted.keys() - read.keys():
            if plan.is_complete:
                case.assertIn(number, self.told)
                case.assertEqual([e for e in events[number] if e > self.told[number]], [])
        records = {}
        for number, each in read.items():
            before = self.told.get(number)
            if number not in self.state.rooms:
                case.assertIsNone(each.since)
            else:
                assert before is not None
                assert each.since is not None
                since = each.since.events.linear
                new = [e for e in events[number] if e > since]
                case.assertEqual(new, [e for e in events[number] if e > before])
            direct = ToldOf.DIRECT if f"!{number}" in self.world.direct else ToldOf.NOTHING
            required = replace(wanted[number].required, lazy_members=False)
            records[number] = RoomRecord(required, WHOLE, direct)
        return records

    def up_to_date(self, wanted: Mapping[int, RoomRule]) -> set[int]:
        """The rooms that a client has, in every respect."""
        found = set()
        for number, rule in wanted.items():
            record = self.state.rooms.get(number)
            if (
                record is not None
                and record.knows(rule.required)
                and (self.world.events[number][-1] <= self.told[number])
            ):
                found.add(number)
        return found


class RandomWindows(SynchronousTestCase):
    """Clients that want one thing after another."""

    def test_each_room_is_read_from_where_its_client_is(self) -> None:
        for seed in range(150):
            rng = Random(seed)
            self.patch(sliding_plan, "MAX_TOLD", rng.choice([3, 1_000]))
            world = World(rng)
            client = ModelConnection(world)
            for _ in range(40):
                world.happen(n for n in ROOMS if rng.random() < rng.choice([0, 0.1, 0.5]))
                if rng.random() < 0.3:
                    world.move(rng.choice(ROOMS))
                client.ask(self, is_lost=rng.random() < 0.2)
