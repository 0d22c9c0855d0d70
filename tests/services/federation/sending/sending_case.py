"""A test case with a world of one server that sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.trial.unittest import TestCase

from simulator.federation.sending_world import SendingWorld


class SendingCase(TestCase):
    """Worlds that end with the test."""

    timeout = 120

    def world(self, **named: Any) -> SendingWorld:
        """A world."""
        world = SendingWorld(**named)
        self.addCleanup(world.close)
        return world

    def settle(self, world: SendingWorld) -> None:
        """Let everything arrive, and check it."""
        world.until(lambda: world.is_quiet)
        world.check()

    def sizes(self, world: SendingWorld, name: str) -> Sequence[int]:
        """The numbers of events of the transactions that a server took."""
        return [len(each.event_ids) for each in world.receivers[name].taken]
