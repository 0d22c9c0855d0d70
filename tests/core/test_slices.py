"""Work in slices: bounded per turn, in order, and fair to those with little work."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.slices import Slices


class SlicesOfTurns(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.scheduler = TwistedScheduler(cast(Any, self.clock))
        self.slices = Slices(self.scheduler, units=10, seconds=1.0)
        self.done: list[str] = []

    async def work(self, name: str, steps: int, cost: int = 1) -> None:
        for _ in range(steps):
            await self.slices.step(cost)
            self.done.append(name)

    def begin(self, name: str, steps: int, cost: int = 1) -> None:
        self.scheduler.spawn(name, self.work(name, steps, cost))

    def turn(self) -> list[str]:
        """The calls of one reactor turn; advancing a clock would run all turns."""
        self.done.clear()
        calls, self.clock.calls = self.clock.calls, []
        for call in calls:
            if call.active():
                call.called = 1
                call.func(*call.args)
        return list(self.done)

    def test_little_work_is_done_at_once(self) -> None:
        self.begin("a", 10)
        self.assertEqual(len(self.done), 10)
        self.assertEqual(self.slices.waiting, 0)

    def test_a_turn_does_no_more_than_its_units(self) -> None:
        self.begin("a", 25)
        self.assertEqual(len(self.done), 10)
        self.assertEqual([len(self.turn()) for _ in range(3)], [10, 5, 0])

    def test_work_takes_turns(self) -> None:
        self.begin("a", 100)
        self.begin("b", 3)
        self.assertEqual("".join(self.turn()), "abababaaaa")

    def test_who_comes_later_does_not_overtake(self) -> None:
        self.begin("a", 11)
        self.turn()
        self.assertTrue(self.slices.take())
        self.begin("a", 20)
        self.assertFalse(self.slices.take())

    def test_a_step_beyond_a_whole_turn_is_taken_all_the_same(self) -> None:
        self.begin("a", 2, cost=1000)
        self.assertEqual(self.done, ["a"])
        self.assertEqual(self.turn(), ["a"])

    def test_a_turn_ends_when_its_time_is_over(self) -> None:
        async def slow() -> None:
            for _ in range(4):
                await self.slices.step()
                self.done.append("slow")
                self.clock.rightNow += 0.6

        self.scheduler.spawn("slow", slow())
        self.assertEqual(len(self.done), 2)
        self.assertEqual(len(self.turn()), 2)

    def test_nothing_goes_on_once_the_scheduler_is_stopped(self) -> None:
        self.begin("a", 25)
        self.scheduler.stop()
        self.assertEqual([len(self.turn()) for _ in range(3)], [0, 0, 0])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_nothing_is_scheduled_while_nothing_is_done(self) -> None:
        self.begin("a", 25)
        self.clock.pump([0, 0, 0])
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.slices.turns, 3)
