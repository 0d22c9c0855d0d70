"""Outgoing commands over lost and slow connections, and at the end."""

from __future__ import annotations

from unittest import TestCase
from unittest.mock import patch

from synrepl.core.slices import UNITS
from synrepl.services.sending import outgoing_commands
from synrepl.services.sending.outgoing_commands import MAX_EVENTS, REPEAT_S, STOP_S, TooManyUnsent
from synrepl.services.serving.user_sync import TooManySyncingUsers
from synrepl.wire.dialects import CURRENT, LEGACY, MODERN
from tests.services.sending_world import CommandSender, FakeConnection
from tests.services.world import done


def ups(lines: list[str]) -> list[str]:
    """The servers in some lines."""
    return [line.split()[1] for line in lines if line.startswith("REMOTE_SERVER_UP")]


class SendingAgainAfterReconnecting(TestCase):
    def test_repeats_only_the_present_states(self) -> None:
        sender = CommandSender(MODERN)
        commands = sender.commands
        commands.user_sync("@before:x", True, at=1)
        first = sender.connect()
        self.assertEqual(first.lines(), ["USER_SYNC w1 @before:x start 1000"])
        commands.user_sync("@u:x", True, at=2)
        commands.federation_ack(7)
        commands.remote_server_up("one.example")
        self.assertEqual(len(first.lines()), 3)
        sender.outgoing.disconnected()
        commands.user_sync("@before:x", False)
        commands.user_sync("@while:x", True, at=3)
        commands.user_sync("@gone:x", True)
        commands.user_sync("@gone:x", False)
        second = sender.connect()
        self.assertEqual(
            sorted(second.lines()),
            ["USER_SYNC w1 @u:x start 2000", "USER_SYNC w1 @while:x start 3000"],
        )
        # The acknowledgement waits until it is known that the stream has not started again.
        sender.outgoing.position(9)
        sender.outgoing.position(9)
        self.assertEqual(second.lines(), ["FEDERATION_ACK w1 7"])

    def test_forgets_an_acknowledgement_when_the_stream_restarts(self) -> None:
        sender = CommandSender(MODERN)
        first = sender.connect()
        sender.commands.federation_ack(7)
        sender.outgoing.disconnected()
        second = sender.connect()
        sender.outgoing.position(6)
        self.assertEqual((first.lines(), second.lines()), (["FEDERATION_ACK w1 7"], []))
        self.assertIsNone(sender.outgoing.acknowledged)
        sender.outgoing.position(20)
        self.assertEqual(second.lines(), [])
        sender.commands.federation_ack(3)
        self.assertEqual(second.lines(), ["FEDERATION_ACK w1 3"])

    def test_queues_a_bounded_number_of_events(self) -> None:
        sender = CommandSender(LEGACY)
        for number in range(MAX_EVENTS):
            sender.commands.remote_server_up(f"s{number}")
        with self.assertRaisesRegex(TooManyUnsent, "REMOVE_PUSHER is not sent: 1000 commands"):
            sender.commands.remove_pusher("app", "key", "@u:x")
        sender.commands.user_sync("@u:x", True)  # a state takes no room
        connection = sender.connect()
        lines = connection.lines()
        self.assertEqual(ups(lines), [f"s{number}" for number in range(MAX_EVENTS)])
        self.assertEqual(len(lines), MAX_EVENTS + 1)
        sender.outgoing.disconnected()
        self.assertEqual(sender.connect().lines(), ["USER_SYNC @u:x start 1700000000000"])

    def test_keeps_queued_commands_for_the_next_connection(self) -> None:
        sender = CommandSender(MODERN)
        first = sender.connect()
        first.full = True
        sender.commands.remote_server_up("one.example")
        sender.commands.user_sync("@u:x", True)
        first.closing = True
        first.free()
        sender.outgoing.disconnected()
        second = sender.connect()
        self.assertEqual(first.lines(), [])
        self.assertEqual(
            second.lines(),
            ["REMOTE_SERVER_UP one.example", "USER_SYNC w1 @u:x start 1700000000000"],
        )


class SendingOverASlowConnection(TestCase):
    def test_sends_only_the_latest_state_of_each_user(self) -> None:
        sender = CommandSender(MODERN)
        connection = sender.connect()
        sender.commands.user_sync("@old:x", True)
        connection.lines()
        connection.full = True
        for number in range(100):
            sender.commands.user_sync("@u:x", True, at=number)
            sender.commands.user_sync("@u:x", False, at=number)
            sender.commands.federation_ack(number)
        sender.commands.user_sync("@v:x", True, at=7)
        sender.commands.user_sync("@old:x", False, at=8)
        self.assertEqual(sender.outgoing.unsent, 3)
        connection.free()
        sender.settle()
        self.assertEqual(
            sorted(connection.lines()),
            [
                "FEDERATION_ACK w1 99",
                "USER_SYNC w1 @old:x end 8000",
                "USER_SYNC w1 @v:x start 7000",
            ],
        )

    def test_sends_many_users_in_slices(self) -> None:
        sender = CommandSender(MODERN)
        for number in range(5_000):
            sender.commands.user_sync(f"@u{number}:x", True)
        connection = FakeConnection(sender.scheduler, MODERN)
        sender.outgoing.connected(connection)
        self.assertLessEqual(len(connection.lines()), UNITS)
        sender.settle()
        self.assertGreater(len(connection.lines()), 5_000 - 2 * UNITS)

    def test_limits_the_users_even_while_disconnected(self) -> None:
        sender = CommandSender(MODERN)
        with patch.object(outgoing_commands, "MAX_USERS_OF_CONNECTION", 5):
            for number in range(5):
                sender.commands.user_sync(f"@u{number}:x", True)
            with self.assertRaisesRegex(TooManySyncingUsers, "5 users sync through this process"):
                sender.commands.user_sync("@more:x", True)
            connection = sender.connect()
            connection.full = True
            for number in range(5):
                sender.commands.user_sync(f"@u{number}:x", False)
            with self.assertRaises(TooManySyncingUsers):  # their ends wait to be said
                sender.commands.user_sync("@more:x", True)
            sender.commands.user_sync("@u1:x", True)
            connection.free()
            sender.settle()
            sender.commands.user_sync("@more:x", True)
        self.assertEqual(sender.outgoing.syncing_users, 2)


class SendingOverRedis(TestCase):
    def setUp(self) -> None:
        self.sender = CommandSender(CURRENT)

    def test_first_clears_what_others_remember(self) -> None:
        self.assertEqual(self.sender.connect().lines(), ["CLEAR_USER_SYNC w1"])
        self.sender.commands.user_sync("@u:x", True, device="D", at=1)
        self.sender.outgoing.disconnected()
        self.assertEqual(
            self.sender.connect().lines(),
            ["CLEAR_USER_SYNC w1", "USER_SYNC w1 @u:x D start 1000"],
        )

    def test_repeats_states_for_newcomers_but_not_too_often(self) -> None:
        connection = self.sender.connect()
        self.sender.outgoing.process_joined()  # there is nothing to say
        self.sender.commands.user_sync("@u:x", True, at=1)
        self.sender.commands.federation_ack(4)
        self.sender.commands.remote_server_up("one.example")
        connection.lines()
        for _ in range(100):
            self.sender.outgoing.process_joined()
        self.sender.clock.advance(REPEAT_S - 0.1)
        self.assertEqual(connection.lines(), [])
        self.sender.clock.advance(0.1)
        self.sender.settle()
        states = ["FEDERATION_ACK w1 4", "USER_SYNC w1 @u:x None start 1000"]
        self.assertEqual(connection.lines(), states)
        self.sender.clock.advance(REPEAT_S)
        self.assertEqual(connection.lines(), [])
        self.sender.outgoing.process_joined()
        self.sender.settle()
        self.assertEqual(connection.lines(), states)
        self.sender.outgoing.process_joined()
        self.sender.outgoing.disconnected()
        self.sender.clock.advance(REPEAT_S)  # nobody is there


class StoppingToSend(TestCase):
    def test_clears_users_and_sends_queued_commands(self) -> None:
        for dialect, last in (
            (MODERN, "CLEAR_USER_SYNC w1"),
            (CURRENT, "CLEAR_USER_SYNC w1"),
            (LEGACY, "USER_SYNC @u:x end 1700000000000"),
        ):
            with self.subTest(dialect=dialect.name):
                sender = CommandSender(dialect)
                connection = sender.connect()
                sender.commands.user_sync("@u:x", True)
                connection.lines()
                done(sender.outgoing.stop())
                done(sender.outgoing.stop())
                sender.commands.user_sync("@late:x", True)
                self.assertEqual(connection.lines(), [last])

    def test_does_not_wait_long_for_a_connection_that_accepts_nothing(self) -> None:
        sender = CommandSender(MODERN)
        connection = sender.connect()
        sender.commands.user_sync("@u:x", True)
        connection.full = True
        stopping = sender.scheduler.promise()

        async def stop() -> None:
            await sender.outgoing.stop()
            stopping.callback(None)

        sender.scheduler.spawn("stop", stop())
        self.assertFalse(stopping.called)
        sender.clock.advance(STOP_S)
        self.assertTrue(stopping.called)

    def test_stops_at_once_without_a_connection(self) -> None:
        sender = CommandSender(MODERN)
        sender.commands.user_sync("@u:x", True)
        done(sender.outgoing.stop())
