"""What the simulator demands of a handler's record after a failover that loses commits."""

from __future__ import annotations

from unittest import TestCase

from simulator.follower_checker import FollowerChecker
from simulator.transcript import Transcript
from simulator.truth import Truth, Violations
from synrepl.core.tokens import Range, Token
from synrepl.streams.definition import Fact
from tests.storage.samples import note

KEY = ("notes", "one")

#: What a failover has left for certain, and where streams go on.
KEPT, FLOOR = 3, 1000


class RecordedPositionsAfterAFailover(TestCase):
    """A handler had the facts up to 5, and a notification that those above 3 may be lost; they are not."""

    def setUp(self) -> None:
        self.violations = Violations(Transcript(lambda: 0.0))
        self.truth = Truth()
        self.facts = [Fact(token, "one", (note(str(token)),)) for token in range(1, 7)]
        for fact in self.facts:
            self.truth.committed("notes", fact)

    def handler(self, exactly_once: bool = False) -> FollowerChecker:
        checker = FollowerChecker(
            self.violations,
            self.truth,
            "worker1's handler",
            linear=False,
            exactly_once=exactly_once,
            earliest=True,
            alone=True,
            too_long=None,
            may_be_lost=lambda stream, writer, token: KEPT < token < FLOOR - 1,
        )
        checker.applied(*KEY, 0, 5, self.facts[:5])
        if not exactly_once:
            checker.lost_by_failover(*KEY, Range(KEPT, 5))
        return checker

    def broken(self) -> list[str]:
        return [violation.partition(":")[0] for violation in self.violations.found]

    def on_record(self, checker: FollowerChecker, position: Token) -> None:
        checker.on_record({KEY: position})
        checker.restarted({KEY: position})

    def test_a_record_within_the_loss_is_not_binding(self) -> None:
        checker = self.handler()
        self.on_record(checker, 5)
        checker.lost_by_failover(*KEY, Range(KEPT, 5))
        checker.applied(*KEY, KEPT, 6, self.facts[3:])
        self.assertEqual(self.broken(), [])

    def test_continuing_within_the_loss_without_a_reset_skips_facts(self) -> None:
        checker = self.handler()
        self.on_record(checker, 5)
        checker.applied(*KEY, 5, 6, self.facts[5:])
        self.assertEqual(self.broken(), ["R3"])

    def test_waiting_within_the_loss_lacks_facts(self) -> None:
        checker = self.handler()
        self.on_record(checker, 5)
        self.assertEqual([fact.token for fact in checker.missing("notes", ["one"])], [4, 5, 6])

    def test_a_record_beyond_the_loss_is_binding(self) -> None:
        self.on_record(self.handler(), FLOOR)
        self.assertIn("R3", self.broken())

    def test_a_record_that_commits_with_effects_is_always_binding(self) -> None:
        self.on_record(self.handler(exactly_once=True), 6)
        self.assertIn("R3", self.broken())
