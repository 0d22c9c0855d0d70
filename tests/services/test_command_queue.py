"""Commands on their way to handlers: in order, one at a time, and never without bound."""

from __future__ import annotations

from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.slices import Slices
from synrepl.services.following import command_queue
from synrepl.services.following.command_queue import CommandQueue
from synrepl.services.following.failures import HandlerFailures
from synrepl.services.handlers import Handler
from synrepl.wire.commands import Command, RemoteServerUp
from tests.services.world import Noting, manual_clock


class Slow(Handler):
    """Notes commands, and is done with one when a test says so."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.under_way: list[Deferred[None]] = []

    async def on_command(self, source: str, command: Command) -> None:
        assert isinstance(command, RemoteServerUp)
        self.seen.append(command.server)
        done: Deferred[None] = Deferred()
        self.under_way.append(done)
        await done


class Quick(Slow):
    """Is done at once."""

    async def on_command(self, source: str, command: Command) -> None:
        assert isinstance(command, RemoteServerUp)
        self.seen.append(command.server)
        if command.server == "bad":
            raise RuntimeError("it is bad")


class Deaf(Handler):
    """Wants rows only."""


class Queues(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = manual_clock()
        self.scheduler = TwistedScheduler(self.clock)
        self.log = Noting()

    def queue(self, *handlers: Handler) -> CommandQueue:
        named = {type(handler).__name__: handler for handler in handlers}
        failures = HandlerFailures(self.scheduler, self.log)
        return CommandQueue(self.scheduler, Slices(self.scheduler), named, failures, self.log)

    def put(self, queue: CommandQueue, *servers: str) -> None:
        for server in servers:
            queue.put("w", RemoteServerUp(server))
        self.clock.advance(0)

    def test_one_at_a_time_and_in_order(self) -> None:
        slow, quick = Slow(), Quick()
        queue = self.queue(slow, Deaf(), quick)
        self.put(queue, "a", "b", "c")
        self.assertEqual((slow.seen, quick.seen), (["a"], ["a", "b", "c"]))
        self.assertEqual(queue.waiting, 2)
        slow.under_way[0].callback(None)
        self.assertEqual(slow.seen, ["a", "b"])

    def test_one_that_fails_is_logged_and_done_with(self) -> None:
        quick = Quick()
        self.put(self.queue(quick), "bad", "good")
        self.assertEqual(quick.seen, ["bad", "good"])
        ((_, line),) = self.log.lines
        self.assertIn("handler Quick failed at command REMOTE_SERVER_UP: RuntimeError", line)

    def test_many_are_handed_on_in_slices(self) -> None:
        quick = Quick()
        queue = self.queue(quick)
        for number in range(5_000):
            queue.put("w", RemoteServerUp(f"s{number}"))
        self.assertLess(len(quick.seen), 1_000)
        self.clock.advance(0)
        self.assertEqual(quick.seen, [f"s{number}" for number in range(5_000)])

    def test_a_handler_that_is_far_behind(self) -> None:
        slow = Slow()
        with patch.object(command_queue, "MAX_WAITING", 10):
            queue = self.queue(slow)
            self.put(queue, *"abcde")
            self.assertFalse(queue.full)
            self.put(queue, "f")
            self.assertTrue(queue.full)
            room: list[None] = []
            Deferred.fromCoroutine(queue.room()).addCallback(room.append)
            self.assertEqual(room, [])
            slow.under_way[0].callback(None)
            self.assertEqual((room, queue.full), ([None], False))
            self.put(queue, *"ghijklmnop")
            self.assertEqual((queue.waiting, queue.dropped), (10, 4))
        ((level, text),) = self.log.lines
        self.assertEqual(level, "warn")
        self.assertIn("10 commands wait for on_command of Slow", text)
        while slow.under_way:
            slow.under_way.pop(0)
            if slow.under_way:
                slow.under_way[0].callback(None)
        self.assertEqual(slow.seen, list("abcdefghijkl"))

    def test_nobody_who_would_hear(self) -> None:
        queue = self.queue(Deaf())
        self.put(queue, *["x"] * 100_000)
        self.assertEqual((queue.waiting, queue.dropped, queue.full), (0, 0, False))

    def test_nothing_is_handed_on_while_it_is_held(self) -> None:
        handler = Quick()
        queue = self.queue(handler)
        queue.hold()
        self.put(queue, "a", "b")
        self.assertEqual((handler.seen, queue.waiting), ([], 2))
        queue.release()
        self.put(queue, "c")
        self.assertEqual(handler.seen, ["a", "b", "c"])
