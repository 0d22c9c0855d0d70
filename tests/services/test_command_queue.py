"""Commands are delivered to handlers in order, one at a time, through a bounded queue."""

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
from tests.services.world import RecordingLog, manual_clock


class BlockingHandler(Handler):
    """Records commands, and processes each until the test lets it finish."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.under_way: list[Deferred[None]] = []

    async def on_command(self, source: str, command: Command) -> None:
        assert isinstance(command, RemoteServerUp)
        self.seen.append(command.server)
        done: Deferred[None] = Deferred()
        self.under_way.append(done)
        await done


class ImmediateHandler(BlockingHandler):
    """Records commands, and finishes at once."""

    async def on_command(self, source: str, command: Command) -> None:
        assert isinstance(command, RemoteServerUp)
        self.seen.append(command.server)
        if command.server == "bad":
            raise RuntimeError("it is bad")


class RowsOnlyHandler(Handler):
    """Does not override ``on_command``."""


class QueueingCommands(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = manual_clock()
        self.scheduler = TwistedScheduler(self.clock)
        self.log = RecordingLog()

    def queue(self, *handlers: Handler) -> CommandQueue:
        named = {type(handler).__name__: handler for handler in handlers}
        failures = HandlerFailures(self.scheduler, self.log)
        return CommandQueue(self.scheduler, Slices(self.scheduler), named, failures, self.log)

    def put(self, queue: CommandQueue, *servers: str) -> None:
        for server in servers:
            queue.put("w", RemoteServerUp(server))
        self.clock.advance(0)

    def test_delivers_one_command_at_a_time_in_order(self) -> None:
        slow, quick = BlockingHandler(), ImmediateHandler()
        queue = self.queue(slow, RowsOnlyHandler(), quick)
        self.put(queue, "a", "b", "c")
        self.assertEqual((slow.seen, quick.seen), (["a"], ["a", "b", "c"]))
        self.assertEqual(queue.waiting, 2)
        slow.under_way[0].callback(None)
        self.assertEqual(slow.seen, ["a", "b"])

    def test_logs_a_failing_command_and_continues(self) -> None:
        quick = ImmediateHandler()
        self.put(self.queue(quick), "bad", "good")
        self.assertEqual(quick.seen, ["bad", "good"])
        ((_, line),) = self.log.lines
        self.assertIn(
            "handler ImmediateHandler failed at command REMOTE_SERVER_UP: RuntimeError", line
        )

    def test_delivers_many_commands_in_slices(self) -> None:
        quick = ImmediateHandler()
        queue = self.queue(quick)
        for number in range(5_000):
            queue.put("w", RemoteServerUp(f"s{number}"))
        self.assertLess(len(quick.seen), 1_000)
        self.clock.advance(0)
        self.assertEqual(quick.seen, [f"s{number}" for number in range(5_000)])

    def test_is_full_at_half_capacity_and_drops_commands_beyond_it(self) -> None:
        slow = BlockingHandler()
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
        self.assertIn("10 commands wait for on_command of BlockingHandler", text)
        while slow.under_way:
            slow.under_way.pop(0)
            if slow.under_way:
                slow.under_way[0].callback(None)
        self.assertEqual(slow.seen, list("abcdefghijkl"))

    def test_queues_nothing_for_handlers_without_on_command(self) -> None:
        queue = self.queue(RowsOnlyHandler())
        self.put(queue, *["x"] * 100_000)
        self.assertEqual((queue.waiting, queue.dropped, queue.full), (0, 0, False))

    def test_delivers_nothing_while_it_is_held(self) -> None:
        handler = ImmediateHandler()
        queue = self.queue(handler)
        queue.hold()
        self.put(queue, "a", "b")
        self.assertEqual((handler.seen, queue.waiting), ([], 2))
        queue.release()
        self.put(queue, "c")
        self.assertEqual(handler.seen, ["a", "b", "c"])
