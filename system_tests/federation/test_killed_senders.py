"""A process that sends is killed at each statement of each of its transactions, and nothing is lost or comes twice."""

from __future__ import annotations

from simulator.federation.receiving_server import Reception
from simulator.federation.sending_world import SendingWorld
from simulator.rooms.interruptions import KillsEverywhere
from tests.services.federation.sending.sending_case import SendingCase


class KilledEverywhereTest(SendingCase):
    timeout = 600

    def test_each_event_arrives_once_and_in_order(self) -> None:
        kills = KillsEverywhere()
        world = self.world(interruptions=kills)
        room = world.room("room", ["one", "two", "three"])
        other = world.room("other", ["two"])
        self.settle(world)
        kills.is_on = True
        rounds = 0
        while rounds < 4 or self._was_killed(kills):
            rounds += 1
            self.assertLess(rounds, 60)
            self._round(world, rounds)
            for _ in range(3):
                world.say(room)
                world.say(other)
            world.until(lambda: world.is_quiet, 3_000.0)
            world.check()
        self.assertGreater(len(kills.places), 60)

    def _was_killed(self, kills: KillsEverywhere) -> bool:
        """Whether there were new places since the last time."""
        before, self._before = getattr(self, "_before", 0), len(kills.places)
        return before < len(kills.places)

    def _round(self, world: SendingWorld, number: int) -> None:
        """Make what is sent unusual: lost answers, slow servers, servers that are away for a while."""
        one, two, three = (world.receivers[name] for name in ("one", "two", "three"))
        one.next.extend([Reception.ANSWER_LOST] * (number % 3))
        two.answer_s = [0.0, 3.0, 20.0][number % 3]
        if number % 4 == 1:
            world.federation.stop(three.name)
            world.clock.callLater(45.0, world.federation.start, three.name)
