"""Events arrive at the servers in their room: each once, in order, whatever happens."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from simulator.federation.receiving_server import Reception
from simulator.federation.sending_world import SendingWorld


class SendingCase(TestCase):
    """A world of one server."""

    timeout = 120

    def world(self, *args: object, **named: object) -> SendingWorld:
        """A world, which ends with the test."""
        world = SendingWorld(*args, **named)  # type: ignore[arg-type]
        self.addCleanup(world.close)
        return world


class SendingEventsTest(SendingCase):
    def test_sends_each_event_to_the_servers_that_were_in_the_room_before_it(self) -> None:
        world = self.world()
        room = world.room("room", ["one", "two"])
        said = world.say(room)
        left = world.leave(room, "@bob:two")
        later = world.say(room)
        world.until(lambda: world.is_quiet)
        world.check()
        self.assertIn(said.event_id, world.receivers["two"].event_ids)
        self.assertNotIn(later.event_id, world.receivers["two"].event_ids)
        self.assertNotIn(left.event_id, world.receivers["one"].event_ids)
        self.assertEqual(world.receivers["one"].event_ids[-2:], [said.event_id, later.event_id])

    def test_sends_the_same_transaction_again_when_its_answer_is_lost(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        world.until(lambda: world.is_quiet)
        one = world.receiver("one")
        one.next.append(Reception.ANSWER_LOST)
        world.say(room)
        world.until(lambda: world.is_quiet and one.repeated == 1)
        world.check()
