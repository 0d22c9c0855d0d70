"""One connection after the other, under ``synrepl tail`` and ``synrepl watch``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from unittest import TestCase

from twisted.internet.defer import Deferred

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.raw_peer import HIGH_WATER, CommandInbox, NoMaster, RawFollower
from synrepl.core.errors import SynreplError
from synrepl.core.retry import BackOff
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command, Ping
from synrepl.wire.dialects import LEGACY, MODERN, Dialect
from tests.services.world import manual_clock

AWAY = NoMaster(where="127.0.0.1:1", reason="refused")


class _FakeUpstream:
    """A connection that is lost after some reads."""

    address = "127.0.0.1:1"
    has_greeted = True
    reason = "lost"

    def __init__(self, *reads: Sequence[Command]) -> None:
        self._reads = [*map(list, reads), []]
        self.closed = False

    def send(self, command: Command) -> None: ...

    async def commands(self) -> list[Command]:
        return self._reads.pop(0)

    def close(self, reason: CloseReason) -> None:
        self.closed = True

    def refusal(self) -> SynreplError | None:
        return None


class _RecordingListener:
    """Records events, with their times.

    :ivar enough: the number of commands after which it stops
    """

    def __init__(self, scheduler: TwistedScheduler) -> None:
        self._scheduler = scheduler
        self._received = False
        self.enough = 1_000
        self.happened: list[str] = []
        self.times: list[float] = []

    def unreachable(self, error: NoMaster) -> None:
        self._note("unreachable")

    def connected(self, upstream: _FakeUpstream) -> None:
        self._received = False
        self._note("connected")

    async def received(self, upstream: _FakeUpstream, commands: Sequence[Command]) -> bool:
        self._received = True
        self.enough -= len(commands)
        self._note(f"received {len(commands)}")
        return self.enough > 0

    def disconnected(self) -> None:
        self._note("disconnected")

    def dialect_understood(self, upstream: _FakeUpstream) -> bool:
        return self._received

    def _note(self, what: str) -> None:
        self.happened.append(what)
        self.times.append(self._scheduler.seconds())


class RawFollowerReconnecting(TestCase):
    def setUp(self) -> None:
        self.clock = manual_clock()
        self.scheduler = TwistedScheduler(self.clock, lambda: 0.0)  # without jitter
        self.addCleanup(self.scheduler.stop)
        self.listener = _RecordingListener(self.scheduler)
        self.dialects: list[str] = []
        self.upstreams: list[_FakeUpstream] = []

    def follow(
        self, outcomes: Iterable[_FakeUpstream | NoMaster], dialects: Sequence[Dialect] = (MODERN,)
    ) -> Deferred[None]:
        left = iter(outcomes)

        async def connect(dialect: Dialect) -> _FakeUpstream:
            self.dialects.append(dialect.name)
            outcome = next(left, AWAY)
            if isinstance(outcome, NoMaster):
                raise outcome
            self.upstreams.append(outcome)
            return outcome

        follower = RawFollower(self.scheduler, connect, dialects, BackOff(1.0, 4.0), self.listener)
        running = Deferred.fromCoroutine(follower.run())
        running.addErrback(lambda failure: None)  # cancelled at the end
        return running

    def test_passes_on_commands_until_the_listener_stops(self) -> None:
        self.listener.enough = 3
        running = self.follow([_FakeUpstream([Ping("1")], [Ping("2"), Ping("3")], [Ping("4")])])
        self.assertTrue(running.called)
        self.assertEqual(
            self.listener.happened, ["connected", "received 1", "received 2", "disconnected"]
        )
        self.assertTrue(self.upstreams[0].closed)

    def test_backs_off_while_unreachable_and_resets_after_a_good_connection(
        self,
    ) -> None:
        self.follow([AWAY, AWAY, AWAY, _FakeUpstream([Ping("1")]), AWAY])
        start = self.clock.seconds()
        self.clock.pump([0.5] * 20)
        attempts = {
            time - start
            for what, time in zip(self.listener.happened, self.listener.times, strict=True)
            if what in ("unreachable", "connected")
        }
        self.assertEqual(sorted(attempts), [0.0, 1.0, 3.0, 7.0, 8.0, 10.0])

    def test_backs_off_from_a_server_that_says_nothing(self) -> None:
        self.follow([_FakeUpstream() for _ in range(10)])
        self.clock.pump([0.5] * 14)
        self.assertEqual(self.listener.happened.count("connected"), 4)

    def test_tries_the_next_dialect_at_once_and_the_first_after_a_pause(self) -> None:
        self.follow([_FakeUpstream(), _FakeUpstream(), _FakeUpstream()], (MODERN, LEGACY))
        self.assertEqual(self.dialects, ["modern", "legacy"])
        self.clock.pump([1.0])
        self.assertEqual(self.dialects, ["modern", "legacy", "modern", "legacy"])

    def test_stays_with_the_dialect_that_was_understood(self) -> None:
        self.follow([_FakeUpstream(), _FakeUpstream([Ping("1")]), AWAY], (MODERN, LEGACY))
        self.clock.pump([1.0, 2.0])
        self.assertEqual(self.dialects, ["modern", "legacy", "legacy", "legacy"])


class CommandInboxBackPressure(TestCase):
    """Commands that are queued for their reader."""

    def setUp(self) -> None:
        self.done: list[str] = []
        self.inbox = CommandInbox(
            lambda: self.done.append("pause"), lambda: self.done.append("resume")
        )

    def take(self) -> Deferred[list[Command]]:
        return Deferred.fromCoroutine(self.inbox.take())

    def test_a_reader_waits_for_the_first_command(self) -> None:
        taken = self.take()
        self.inbox.put([])
        self.assertFalse(taken.called)
        self.inbox.put([Ping("1"), Ping("2")])
        self.assertEqual(taken.result, [Ping("1"), Ping("2")])
        self.assertEqual(self.done, [])

    def test_too_many_commands_pause_the_connection_until_they_are_taken(self) -> None:
        for _ in range(3):
            self.inbox.put([Ping("1")] * HIGH_WATER)
        self.assertEqual(self.done, ["pause"])
        self.assertEqual(len(self.take().result), 3 * HIGH_WATER)
        self.assertEqual(self.done, ["pause", "resume"])

    def test_commands_received_before_the_end_can_still_be_taken(self) -> None:
        self.inbox.put([Ping("1")] * (HIGH_WATER + 1))
        self.inbox.end()
        self.assertEqual(len(self.take().result), HIGH_WATER + 1)
        self.assertEqual(self.take().result, [])
        self.assertEqual(self.done, ["pause"])
