"""Large rooms with changing members: the CPU time of planning state groups, and the memory of auth chains.

Workload W2 is a room of 10,000 members with a linear sequence of 50,000 state events. The events are
created without JSON, hashes and signatures, which are measured elsewhere.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from time import process_time
from typing import Any

from benchmarks.harness import Row, Scale, at_most, cpu, shown
from benchmarks.object_size import size_of
from synrepl.rooms import (
    BitSetChains,
    CompactStateMap,
    Event,
    Room,
    Slots,
    StateGroup,
    plan_group,
    read_group,
    room_version,
)

#: CPU seconds that :func:`~synrepl.rooms.plan_group` took for 20,000 events before it had skip levels.
PLAN_BEFORE = 52.0

#: MiB of the auth chains of 20,000 members when every cited event had a bit.
CHAINS_BEFORE = 210.0

_VERSION = room_version("10")
_CREATOR = "@creator:a.example"


class GrowingRoom:
    """Generates the events of a room, each following the last."""

    def __init__(self) -> None:
        self.count = 0
        self.newest = ""
        self.memberships: dict[str, str] = {}
        create = self.event("m.room.create", {"creator": _CREATOR}, [], _CREATOR, "")
        join = self.event(
            "m.room.member", {"membership": "join"}, [create.event_id], _CREATOR, _CREATOR
        )
        cites = [create.event_id, join.event_id]
        levels = self.event("m.room.power_levels", {"users": {_CREATOR: 100}}, cites, _CREATOR, "")
        cites = [*cites, levels.event_id]
        rules = self.event("m.room.join_rules", {"join_rule": "public"}, cites, _CREATOR, "")
        self.first = [create, join, levels, rules]
        self._always = [create.event_id, levels.event_id]
        self._rules = rules.event_id

    def event(
        self, kind: str, content: dict[str, Any], cites: list[str], sender: str, key: str
    ) -> Event:
        """Create the next event."""
        self.count += 1
        event_id, follows = f"${self.count:043}", self.newest
        self.newest = event_id
        return Event(
            raw=b"{}",
            version=_VERSION,
            fields={"signatures": {"a.example": {"ed25519:1": ""}}},
            event_id=event_id,
            room_id="!room:a.example",
            type=kind,
            sender=sender,
            state_key=key,
            content=content,
            depth=self.count,
            origin_server_ts=self.count,
            prev_event_ids=(follows,) if follows else (),
            auth_event_ids=tuple(cites),
        )

    def member(self, number: int, membership: str) -> Event:
        """Create a user's next membership event."""
        user = f"@user{number}:a.example"
        cites = [*self._always]
        if membership == "join":
            cites.append(self._rules)
        if user in self.memberships:
            cites.append(self.memberships[user])
        event = self.event("m.room.member", {"membership": membership}, cites, user, user)
        self.memberships[user] = event.event_id
        return event

    def story(self, members: int, events: int) -> Iterator[Event]:
        """All members join; then random members leave, join again or change their name."""
        yield from self.first
        chance = random.Random(2)
        inside = set(range(members))
        for number in range(members):
            yield self.member(number, "join")
        for _ in range(events - members):
            number = chance.randrange(members)
            leaves = number in inside and chance.random() < 0.5
            (inside.discard if leaves else inside.add)(number)
            yield self.member(number, "leave" if leaves else "join")


class Plans:
    """The state groups of a growing room.

    :ivar seconds: CPU time of planning them
    """

    def __init__(self) -> None:
        self.groups: dict[int, StateGroup] = {}
        self.seconds = 0.0
        self._last: tuple[int, CompactStateMap] | None = None

    def add(self, state: CompactStateMap) -> None:
        """Plan a group for a state that is similar to the last."""
        near = [] if self._last is None else [self._last]
        before = process_time()
        plan = plan_group(state, near, self.groups.__getitem__)
        self.seconds += process_time() - before
        self._last = len(self.groups), state
        self.groups[len(self.groups)] = plan

    @property
    def entries(self) -> int:
        """Number of stored entries."""
        return sum(len(group.delta) for group in self.groups.values())

    def hops(self, group: int) -> int:
        """Number of other groups that reading a group needs."""
        found, prev = 0, self.groups[group].prev
        while prev is not None:
            found, prev = found + 1, self.groups[prev].prev
        return found


def run(scale: Scale) -> Iterator[Row]:
    """Measure state groups, then auth chains."""
    yield from _workload_2(scale)
    yield _plans_alone(scale)
    yield from _chains(scale)


def _workload_2(scale: Scale) -> Iterator[Row]:
    members, count = scale.of(10_000), scale.of(50_000)
    events = list(GrowingRoom().story(members, count))
    room, plans = Room(_VERSION), Plans()
    gc.collect()
    began = process_time()
    for event in events:
        (judged,) = room.receive(event)
        assert judged.state_after is not None
        assert judged.passed_all_checks
        plans.add(judged.state_after)
    took = (process_time() - began) / len(events)
    plan = plans.seconds / len(events)
    name = f"room of {members:,} members and {count:,} state events"
    yield Row(
        f"{name}: judge and plan a state group, an event",
        took * 1e3,
        "ms of CPU",
        at_most(1.5),
        None,
        f"{shown(plan * 1e6)} µs of it to plan",
        {"seconds": took, "plan_seconds": plan},
    )
    last = len(plans.groups) - 1
    assert read_group(last, plans.groups.__getitem__) == room.current_state()
    hops = [plans.hops(group) for group in range(0, last, 97)]
    yield Row(
        f"{name}: entries stored for a state group",
        plans.entries / len(plans.groups),
        "entries",
        at_most(6),
        None,
        f"chains of {max(hops)} groups at most, {shown(sum(hops) / len(hops))} on average",
    )


def _plans_alone(scale: Scale) -> Row:
    members, count = scale.of(4_000), scale.of(20_000)
    slots, plans = Slots(), Plans()
    state, chance = CompactStateMap(None, slots), random.Random(1)
    for number in range(count):
        member = number if number < members else chance.randrange(members)
        state = state.with_entry(("m.room.member", f"@u{member}:x"), f"${number}")
        plans.add(state)
    return Row(
        f"plan {count:,} state groups of a room of {members:,} members",
        plans.seconds,
        "s of CPU",
        at_most(3),
        None,
        f"{shown(plans.seconds / count * 1e6)} µs each; before there were skip levels, 20,000 of"
        f" 4,000 members took {shown(PLAN_BEFORE)} s",
    )


def _chains(scale: Scale) -> Iterator[Row]:
    sizes = {}
    for full in 20_000, 100_000:
        members = scale.of(full)
        room = GrowingRoom()
        events = [
            *room.first,
            *(
                room.member(number, membership)
                for membership in ("join", "leave", "join")
                for number in range(members)
            ),
        ]
        chains = BitSetChains()

        def fill(chains: BitSetChains = chains, events: list[Event] = events) -> None:
            for event in events:
                chains.add(event)

        took = cpu(fill)
        # IDs and tuples of IDs are not counted, because the events have them anyway.
        known = {id(each) for event in events for each in (event.event_id, *event.auth_event_ids)}
        sizes[full] = size_of([chains], known) / 2**20
        bound = at_most(max(1.0, 16 * scale.factor)) if full == 20_000 else None
        before = f"; {shown(CHAINS_BEFORE)} MiB of 20,000 members when all that is cited had a bit"
        yield Row(
            f"auth chains of {members:,} members who join, leave and join",
            sizes[full],
            "MiB",
            bound,
            None,
            f"{shown(took / len(events) * 1e6)} µs an event" + (before if bound else ""),
        )
    yield Row(
        "auth chains of five times as many members",
        sizes[100_000] / sizes[20_000],
        "× the memory",
        at_most(7),
        None,
        "5 is linear, 25 the square",
    )
