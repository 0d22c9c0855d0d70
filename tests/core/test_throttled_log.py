"""Warnings that may come with every request."""

from __future__ import annotations

from unittest import TestCase

from twisted.internet.task import Clock

from synrepl.core.throttled_log import EVERY_S, MOST_CAUSES, ThrottledLog
from tests.services.world import RecordingLog


class ThrottledWarnings(TestCase):
    """A log under a clock of the test's."""

    def setUp(self) -> None:
        self.clock, self.log = Clock(), RecordingLog()
        self.throttled = ThrottledLog(self.clock, self.log)

    def warn(self, cause: str = "a", times: int = 1) -> list[str]:
        """The lines of warnings."""
        before = len(self.log.lines)
        for _ in range(times):
            self.throttled.warn(cause, "{what} is wrong", what=cause)
        return [text for _, text in self.log.lines[before:]]

    def test_each_cause_is_logged_at_once_and_then_once_in_a_while(self) -> None:
        self.assertEqual(self.warn("a", 3), ["a is wrong"])
        self.assertEqual(self.warn("b"), ["b is wrong"])
        self.clock.advance(EVERY_S - 1)
        self.assertEqual(self.warn("a"), [])
        self.clock.advance(1)
        self.assertEqual(self.warn("a"), ["a is wrong (3 more since the last warning of this)"])
        self.assertEqual(self.warn("b", 2), ["b is wrong"])
        self.clock.advance(EVERY_S)
        self.assertEqual(self.warn("a"), ["a is wrong"])

    def test_any_number_of_causes_takes_bounded_memory(self) -> None:
        for number in range(MOST_CAUSES):
            self.warn(str(number))
        self.assertEqual(self.warn("0"), [])
        self.warn("one more")
        self.assertEqual(self.warn("0"), ["0 is wrong"])
        self.assertEqual(self.warn("one more"), [])
