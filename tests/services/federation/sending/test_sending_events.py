"""Events arrive at the servers that were in the room before them, once and in order."""

from __future__ import annotations

from simulator.federation.receiving_server import Reception
from simulator.federation.sending_processes import HOME
from simulator.rooms.partially import make_partial
from synrepl.rooms import Event
from synrepl.services.federation.sending.dispatcher import SendingLimits
from synrepl.services.federation.sending.transactions import MAX_MISSED
from tests.services.federation.sending.sending_case import SendingCase

ALICE = f"@alice:{HOME}"


class RecipientsTest(SendingCase):
    def test_sends_each_event_to_the_servers_that_were_in_the_room_before_it(self) -> None:
        world = self.world()
        room = world.room("room", ["one", "two"])
        said = world.say(room)
        left = world.leave(room, "@bob:two")
        later = world.say(room)
        self.settle(world)
        self.assertIn(said.event_id, world.receivers["two"].event_ids)
        self.assertNotIn(later.event_id, world.receivers["two"].event_ids)
        self.assertNotIn(left.event_id, world.receivers["one"].event_ids)
        self.assertEqual(world.receivers["one"].event_ids[-2:], [said.event_id, later.event_id])

    def test_a_server_with_one_member_less_is_still_in_the_room(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        world.join(room, "@carol:one")
        world.leave(room, "@bob:one")
        said = world.say(room)
        self.settle(world)
        self.assertIn(said.event_id, world.receivers["one"].event_ids)

    def test_sends_a_kick_to_the_server_of_the_last_member(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        kick = world.send(room, "m.room.member", ALICE, {"membership": "leave"}, "@bob:one")
        world.say(room)
        self.settle(world)
        self.assertEqual(world.receivers["one"].event_ids[-1], kick.event_id)

    def test_tells_the_server_of_an_invited_user_that_the_invite_is_withdrawn(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        invite = {"membership": "invite"}
        world.send(room, "m.room.member", ALICE, invite, "@eve:two")
        gone = world.send(room, "m.room.member", ALICE, {"membership": "leave"}, "@eve:two")
        world.receiver("two")
        world.owed["two"].append(gone.event_id)
        self.settle(world)
        self.assertEqual(world.receivers["two"].event_ids, [gone.event_id])

    def test_sends_an_event_of_a_fork_to_the_servers_of_its_own_state(self) -> None:
        world = self.world()
        room = world.room("room", ["one", "two"])
        before = world.say(room)
        world.leave(room, "@bob:two")
        fork = world.send(room, "m.room.message", ALICE, {"body": "x"}, follows=[before.event_id])
        after = world.say(room)
        self.settle(world)
        self.assertIn(fork.event_id, world.receivers["two"].event_ids)
        self.assertNotIn(after.event_id, world.receivers["two"].event_ids)

    def test_passes_an_event_of_another_server_on_to_all_others_if_it_has_to(self) -> None:
        world = self.world()
        room = world.room("room", ["one", "two"])
        join = {"membership": "join"}
        passed_on = world.send(room, "m.room.member", "@eve:two", join, "@eve:two", outgoing=True)
        self.settle(world)
        self.assertIn(passed_on.event_id, world.receivers["one"].event_ids)
        self.assertNotIn(passed_on.event_id, world.receivers["two"].event_ids)

    def test_sends_no_event_that_was_persisted_for_this_server_alone(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        imported = world.send(room, "m.room.message", ALICE, {"body": "years ago"}, outgoing=False)
        said = world.say(room)
        self.settle(world)
        self.assertNotIn(imported.event_id, world.receivers["one"].event_ids)
        self.assertIn(said.event_id, world.receivers["one"].event_ids)

    def test_what_was_said_before_the_first_sender_started_is_sent(self) -> None:
        world = self.world(senders=())
        room = world.room("room", ["one"])
        said = [world.say(room).event_id for _ in range(3)]
        world.start_sender("sender1", ["sender1"])
        self.settle(world)
        self.assertEqual(world.receivers["one"].event_ids[-3:], said)


class PartialRoomsTest(SendingCase):
    """Of a partial room it is known which servers were in it before the join, and who joined since."""

    def _room(self, *, sender: str = ALICE) -> Event:
        world = self.world_ = self.world()
        room = self.room = world.room("room", ["one"])
        self.settle(world)
        world.receiver("before")
        world.server.operator.run("partial", lambda txn: make_partial(txn, room.room_id))
        world.server.operator.run(
            "servers",
            lambda txn: (
                txn.execute(
                    "INSERT INTO synrepl._partial_room_servers SELECT room_no, 'before'"
                    " FROM synrepl._partial_rooms"
                )
                and None
            ),
        )
        event = world.send(room, "m.room.message", sender, {"body": "x"}, outgoing=True)
        world.server.operator.run(
            "partial event",
            lambda txn: (
                txn.execute(
                    "UPDATE synrepl._room_events SET flags = flags | 8 WHERE event_id = %s",
                    (event.event_id,),
                )
                and None
            ),
        )
        return event

    def test_own_events_go_to_the_servers_before_the_join_and_to_those_that_joined(self) -> None:
        event = self._room()
        world = self.world_
        world.owed["before"].append(event.event_id)
        self.settle(world)
        self.assertIn(event.event_id, world.receivers["one"].event_ids)

    def test_events_of_rooms_that_were_abandoned_go_to_the_servers_that_are_known(self) -> None:
        own = self._room()
        world = self.world_
        other = world.send(self.room, "m.room.message", "@bob:one", {"body": "x"}, outgoing=True)
        for statement in (
            "DELETE FROM synrepl._partial_rooms",
            "UPDATE synrepl._room_events SET flags = flags | 8 WHERE sender = '@bob:one'",
            "UPDATE synrepl._room_events SET flags = flags & ~8 | 128 WHERE flags & 8 <> 0",
        ):
            world.server.operator.run("a", lambda txn, s=statement: txn.execute(s) and None)
        world.owed["before"].clear()
        world.until(lambda: own.event_id in world.receivers["one"].event_ids)
        world.run(10.0)
        self.assertNotIn(other.event_id, world.receivers["one"].event_ids)

    def test_events_of_others_go_to_nobody(self) -> None:
        event = self._room(sender="@bob:one")
        world = self.world_
        world.run(30.0)
        self.assertEqual(world.receivers["before"].event_ids, [])
        self.assertNotIn(event.event_id, world.receivers["one"].event_ids)


class TransactionsTest(SendingCase):
    def test_gathers_events_while_a_transaction_is_under_way(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        self.settle(world)
        world.receivers["one"].answer_s = 20.0
        for _ in range(120):
            world.say(room)
        world.receivers["one"].answer_s = 0.0
        self.settle(world)
        sizes = self.sizes(world, "one")
        self.assertEqual(max(sizes), 50)
        self.assertLess(len(sizes), 20)

    def test_sends_the_same_transaction_again_when_its_answer_is_lost(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        self.settle(world)
        one = world.receiver("one")
        one.next.append(Reception.ANSWER_LOST)
        world.say(room)
        world.until(lambda: world.is_quiet and one.repeated == 1)
        world.check()

    def test_a_slow_destination_delays_no_other(self) -> None:
        world = self.world(limits=SendingLimits(in_flight=1, slow_s=2.0))
        room = world.room("room", ["one", "two", "three"])
        self.settle(world)
        for name in ("one", "two"):
            world.receivers[name].answer_s = 50.0
        began = world.clock.seconds()
        said = world.say(room)
        world.until(lambda: said.event_id in world.receivers["three"].event_ids)
        self.assertLess(world.clock.seconds() - began, 10.0)

    def test_an_event_that_is_refused_is_not_sent_again(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        self.settle(world)
        one, sender = world.receivers["one"], world.senders["sender1"].sender
        said = world.say(room)
        one.refused.add(said.event_id)
        world.say(room)
        self.settle(world)
        world.run(60.0)
        self.assertEqual(one.event_ids.count(said.event_id), 1)
        self.assertEqual(sender.transactions.sent["refused events"], 1)

    def test_of_a_transaction_that_is_not_accepted_only_the_bad_event_is_given_up(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        self.settle(world)
        one = world.receivers["one"]
        one.answer_s = 5.0
        first = world.say(room)
        said = [world.say(room) for _ in range(8)]
        one.unacceptable.add(said[2].event_id)
        one.answer_s = 0.0
        world.until(lambda: said[-1].event_id in one.event_ids)
        world.check()
        wanted = [each.event_id for each in (first, *said) if each is not said[2]]
        self.assertEqual(one.event_ids[-8:], wanted)

    def test_a_destination_that_answers_nonsense_gets_everything_in_the_end(self) -> None:
        for reception in (Reception.GARBAGE, Reception.FORBIDDEN, Reception.BROKEN):
            with self.subTest(reception=reception):
                world = self.world()
                room = world.room("room", ["one"])
                self.settle(world)
                one = world.receivers["one"]
                one.next.extend([reception] * 3)
                said = [world.say(room) for _ in range(MAX_MISSED - 10)]
                self.settle(world)
                self.assertEqual(one.event_ids[-len(said) :], [each.event_id for each in said])
