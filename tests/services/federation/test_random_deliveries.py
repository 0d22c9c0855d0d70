"""Random rooms of another server, delivered out of order, in part, twice, by several servers: in the end everything is equal."""

from __future__ import annotations

import os
from random import Random

from simulator.federation.hosted_room import HostedRoom
from synrepl.rooms import Event
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.reading.state_reading import StateAtEvent, locate_states, read_state
from synrepl.storage.rooms.states.named_entries import NamedEntries
from tests.services.federation.inbound_case import BOB, OTHER, REMOTE, InboundCase, named

SEEDS = range(int(os.environ.get("SYNREPL_ROOM_EXAMPLES", "20")) // 2)


class RandomDeliveries(InboundCase):
    """The room of the other server is the truth: it has seen everything in the order of its causes."""

    timeout = 900

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.two = self.inbound(await self.start_process("two"), persists=False)
        self.two.others["one"] = self.here

    def random_event(self, room: HostedRoom, rng: Random, number: int, sent: list[Event]) -> Event:
        """An event on some earlier ones."""
        users = [BOB, f"@eve:{REMOTE}", *(f"@u{each}:{OTHER}" for each in range(3))]
        sender = rng.choice(users)
        follows = None
        if sent and rng.random() < 0.3:
            follows = [
                each.event_id for each in rng.sample(sent, min(len(sent), rng.choice([1, 2])))
            ]
        kind, key = "m.room.message", None
        content: dict[str, object] = {"body": f"{number}"}
        draw = rng.random()
        if draw < 0.25:
            kind, key, content = (
                "m.room.member",
                sender,
                {"membership": rng.choice(["join", "leave"])},
            )
        elif draw < 0.35:
            sender, kind, key, content = BOB, "m.room.topic", "", {"topic": f"{number}"}
        elif draw < 0.42:
            users = {BOB: 100, rng.choice(users): rng.choice([0, 50])}  # type: ignore[assignment]
            sender, kind, key, content = BOB, "m.room.power_levels", "", {"users": users}
        elif draw < 0.5:
            sender, kind, key = BOB, "m.room.member", rng.choice(users[1:])
            content = {"membership": rng.choice(["ban", "leave", "invite"])}
        return self.remote.send(room.room_id, kind, sender, content, key, follows=follows)

    async def deliver(self, rng: Random, events: list[Event]) -> None:
        """Send events in transactions, out of order, some of them twice and some not at all, to either process."""
        sent = [each for each in events if rng.random() < 0.6]
        sent += rng.sample(sent, len(sent) // 5)
        rng.shuffle(sent)
        while sent:
            size = rng.randint(1, 8)
            part, sent = sent[:size], sent[size:]
            process = rng.choice([self.here, self.two])
            await process.receive(part, origin=rng.choice([REMOTE, OTHER]))
            if rng.random() < 0.3:
                await self.all_judged()

    async def all_judged(self) -> None:
        """Wait until nothing is under way, nor staged."""
        staged = "SELECT count(*) FROM synrepl._staged_events"
        await self.until(lambda: self.sql(staged) == 0)
        await self.settled(self.here, self.two)

    async def test_rooms_end_with_equal_verdicts_and_states(self) -> None:
        for seed in SEEDS:
            rng = Random(seed)
            version = rng.choice(["1", "6", "10", "12"])
            room = await self.shared_room(version, name=f"random {seed}")
            events: list[Event] = []
            for number in range(40):
                events.append(self.random_event(room, rng, number, events))
            await self.deliver(rng, events)
            await self.all_judged()
            last = self.say(room)
            await self.here.receive([last])
            await self.settled()
            for event in [*reversed(events), last]:  # whatever was left out comes in the end
                await self.here.receive([event])
            await self.settled()
            self.assertEqual(self.sql("SELECT count(*) FROM synrepl._waiting_events"), 0, seed)
            for event in [*events, last]:
                await self.compare(room, event, seed)
            self.compare_current_state(room, seed)

    def compare_current_state(self, room: HostedRoom, seed: int) -> None:
        """The current state is what the rules make of the ends that are here. Which these are depends on what is soft-failed."""
        ends = self.sql(
            "SELECT array_agg(e.event_id) FROM synrepl._rooms r"
            " JOIN synrepl._forward_extremities f USING (room_no)"
            " JOIN synrepl._room_events e USING (event_no) WHERE r.room_id = %s",
            room.room_id,
        )
        self.assertEqual(
            self.current_state(room), named(room.room.state_after(ends).as_dict()), seed
        )

    async def compare(self, room: HostedRoom, event: Event, seed: int) -> None:
        """An event has the same verdict and the same state before it. Whether it is soft-failed depends on when it came."""
        theirs = room.room[event.event_id]
        names = NamedEntries()

        def read(txn: Transaction) -> tuple[bool, dict[tuple[str, str], str]]:
            txn.execute(
                "SELECT flags & 2 <> 0 FROM synrepl._room_events WHERE event_id = %s",
                (event.event_id,),
            )
            is_rejected = bool(txn.fetchone()[0])
            at = StateAtEvent(event.event_id, before=True, rejected=True)
            stored, (group,) = locate_states(txn, [at])
            return is_rejected, read_state(txn, names, stored, group)

        is_rejected, state = await self.read(read)
        self.assertEqual(is_rejected, theirs.refusal is not None, (seed, event.type))
        expected = room.room.state_before(event.event_id)
        self.assertEqual(state, expected.as_dict(), (seed, event.type))
