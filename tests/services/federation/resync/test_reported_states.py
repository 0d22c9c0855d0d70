"""States that another server reported in a partial room, with events about which it may be mistaken as we are."""

from __future__ import annotations

from collections.abc import Collection

from simulator.federation.hosted_room import HostedRoom
from synrepl.rooms import Event, EventDraft, auth_dependencies, topological_sort
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent
from tests.services.federation.resync.resync_case import ALICE, ResyncCase

#: Who may do anything, and has left before the join, which is not known here; of a server that nobody registered.
DEREK = "@derek:x"

#: A state event of his.
STATE = ("org.example.state", "")


class ReportedStates(ResyncCase):
    """A room in which an event of Derek is wrongly accepted while it is partial."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.room = self.made_room()
        self.send("m.room.power_levels", ALICE, {"users": {ALICE: 100, DEREK: 100}}, "")
        self.early = self.send("m.room.message", ALICE, {"body": "early"})
        membership = self.send("m.room.member", DEREK, {"membership": "join"}, DEREK)
        self.send("m.room.member", DEREK, {"membership": "leave"}, DEREK)
        await self.join(self.room)
        self.forged = await self.forge(self.room, membership)

    def send(
        self, kind: str, user: str, content: dict[str, object], key: str | None = None
    ) -> Event:
        return self.a.send(self.room.room_id, kind, user, content, key)

    async def forge(self, room: HostedRoom, membership: Event) -> Event:
        """Have Derek send an event as if he were in the room; it is accepted here."""
        keys = (("m.room.create", ""), ("m.room.power_levels", ""))
        cited = [each for each in map(room.current, keys) if each is not None]
        builder = self.a.builder(room.version.name, "x")
        draft = EventDraft(STATE[0], DEREK, {}, self.a.now_ms(), STATE[1])
        parents = [room.event(each) for each in sorted(room.room.forward_extremities)]
        event = builder.assemble(draft, room.room_id, parents, [*cited, membership])
        (judged,) = room.room.receive(event)
        self.assertFalse(judged.accepted)
        await self.outliers([membership])
        done = await self.receive(event)
        self.assertEqual(done.events[0].outcome, EventOutcome.ACCEPTED)
        return event

    async def outliers(self, events: Collection[Event]) -> None:
        """Give events with what they cite."""
        everything = {each.event_id: each for each in events}
        everything |= {each.event_id: each for each in self.room.auth_chain(events)}
        ordered = topological_sort(everything.values(), dependencies=auth_dependencies).events
        await self.one.persist(
            self.room.room_id,
            self.room.version,
            [IncomingEvent(each, outlier=True) for each in ordered],
        )

    async def reported(self, event: Event) -> None:
        """Give an event after a gap with a state in which the server that reports it has Derek's event, too."""
        state = self.room.room.state_before(event.event_id).as_dict()
        await self.outliers([self.room.event(each) for each in state.values()])
        state[STATE] = self.forged.event_id
        incoming = IncomingEvent(event, live=False, state_before=state)
        done = await self.one.persist(self.room.room_id, self.room.version, [incoming])
        self.assertEqual(done.events[0].outcome, EventOutcome.ACCEPTED)

    async def complete(self) -> None:
        await self.here.complete()
        whole = await self.check_complete(self.room)
        self.assertFalse(whole[self.forged.event_id].accepted)

    async def test_a_state_loses_what_is_rejected_in_the_end(self) -> None:
        self.send("m.room.message", ALICE, {"body": "nobody has it"})
        await self.reported(self.send("m.room.message", ALICE, {"body": "after the gap"}))
        await self.complete()

    async def test_an_event_is_judged_after_those_in_the_state_before_it(self) -> None:
        missing = self.after(self.early, "nobody has it")
        event = self.after(missing, "deep in the room, and newer than what its state has")
        self.assertLess(event.depth, self.forged.depth)
        await self.reported(event)
        await self.complete()

    def after(self, event: Event, text: str) -> Event:
        """A message on top of an older event."""
        return self.a.send(
            self.room.room_id, "m.room.message", ALICE, {"body": text}, follows=[event.event_id]
        )
