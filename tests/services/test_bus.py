"""Sending and receiving on a bus: which messages, and in which order."""

from __future__ import annotations

from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from synrepl.core.slices import Slices
from synrepl.services.bus.bus_publisher import LONGEST_LINE
from synrepl.services.bus.bus_reader import BusReader
from synrepl.services.bus.bus_relay import MAX_UNSENT, BusRelay, SyncingRepeater
from synrepl.services.bus.channels import Channels
from synrepl.services.bus.master_subscriber import MasterBusSubscriber
from synrepl.services.sending.outgoing_commands import REPEAT_S
from synrepl.services.serving.user_sync import UserSyncs
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import (
    ClearUserSync,
    Command,
    InvalidateCache,
    Position,
    Rdata,
    RemoteServerUp,
    RemovePusher,
    Replicate,
    UserIp,
    UserSync,
)
from tests.services.manual_pubsub import NOTES, OTHERS, ManualPubSub, PubSubProcess
from tests.services.world import RecordingLog

MAIN = "example.org"


class SendingOnTheBus(TestCase):
    def setUp(self) -> None:
        self.pubsub = ManualPubSub()

    def published(self) -> list[str]:
        """Lines published since the last call, on the main channel."""
        self.pubsub.settle()
        published, self.pubsub.published = self.pubsub.published, []
        self.assertEqual({channel for channel, _ in published} - {MAIN}, set())
        return [line.decode() for _, line in published]

    def test_sends_replicate_and_then_its_own_positions_on_joining(self) -> None:
        one = PubSubProcess(self.pubsub, "one")
        positions = ["POSITION notes one 0 0", "POSITION others one 0 0"]
        # The second time it answers itself, as everybody does.
        self.assertEqual(self.published(), ["REPLICATE ", *positions, *positions])
        one.append("a")
        self.assertEqual(self.published(), ["POSITION notes one 0 0", 'RDATA notes one 1 ["a"]'])

    def test_answers_many_simultaneous_requests_once(self) -> None:
        one, _ = PubSubProcess(self.pubsub, "one"), PubSubProcess(self.pubsub, "two")
        one.append("a")
        self.published()
        one.bus.messages_received([b"REPLICATE ", b"REPLICATE", b"REPLICATE "])
        answer = ["POSITION notes one 1 1", "POSITION others one 0 0"]
        self.assertEqual(self.published(), answer)

    def test_sends_collected_rows_before_a_position(self) -> None:
        one = PubSubProcess(self.pubsub, "one")
        self.published()
        one.append("a")
        one.bus.messages_received([b"REPLICATE "])  # in the same turn
        lines = self.published()
        self.assertLess(
            lines.index('RDATA notes one 1 ["a"]'), lines.index("POSITION notes one 1 1")
        )

    def test_announces_a_row_that_is_too_long_by_its_position(self) -> None:
        one = PubSubProcess(self.pubsub, "one")
        one.append("a")
        self.published()
        one.append("b", "c")
        one.append("x" * LONGEST_LINE)
        lines = ['RDATA notes one batch ["b"]', 'RDATA notes one 2 ["c"]', "POSITION notes one 3 3"]
        self.assertEqual(self.published(), lines)

    def test_publishes_each_stream_on_a_channel_of_its_own_if_configured(self) -> None:
        one = PubSubProcess(self.pubsub, "one", per_stream=True)
        self.pubsub.settle()
        self.pubsub.published.clear()
        one.append("a", stream=OTHERS)
        one.bus.send(RemoteServerUp("other.org"))
        self.pubsub.settle()
        received = {line.decode(): channel for channel, line in self.pubsub.published}
        self.assertEqual(received['RDATA others one 1 ["a"]'], "example.org/stream/others")
        self.assertEqual(received["REMOTE_SERVER_UP other.org"], MAIN)

    def test_sends_nothing_while_disconnected(self) -> None:
        one = PubSubProcess(self.pubsub, "one")
        self.published()
        one.wires.cut()
        one.append("a")
        one.bus.send(RemoteServerUp("other.org"))
        one.bus.pause()
        one.bus.resume()
        one.bus.close(CloseReason.LOCAL)
        self.assertFalse(one.bus.is_connected)
        one.connect()
        self.assertEqual(self.published()[:2], ["REPLICATE ", "POSITION notes one 1 1"])

    def test_reconnects_after_the_follower_closed_the_connection(self) -> None:
        one, two = PubSubProcess(self.pubsub, "one"), PubSubProcess(self.pubsub, "two")
        self.published()
        two.bus.messages_received([b'RDATA notes one 1 [["no text"]', b"RDATA notes one 2 7"])
        two.bus.close(CloseReason.PROTOCOL_ERROR, "a row that is none")
        self.assertEqual((one.bus.is_connected, two.bus.is_connected), (True, False))


class RelayingCommandsOfClients(TestCase):
    """What a TCP client says goes on the bus if the bus has it."""

    def test_drops_commands_that_the_bus_lacks_without_logging(self) -> None:
        published: list[Command] = []
        log = RecordingLog()
        relay = BusRelay("master", published.append, log)
        relay.from_client("old", RemovePusher("app", "key", "@u:x"))
        relay.from_client("old", InvalidateCache("users", ("@u:x",)))
        self.assertEqual((published, log.lines), ([], []))

    def test_logs_a_command_that_cannot_be_encoded(self) -> None:
        log = RecordingLog()
        one = PubSubProcess(ManualPubSub(), "one")
        relay = BusRelay("master", one.bus.send, log)
        relay.from_client("old", RemoteServerUp("two words"))
        self.assertIn("not relayed to the bus: REMOTE_SERVER_UP server", log.lines[0][1])

    def test_queues_events_while_disconnected(self) -> None:
        published: list[Command] = []
        stands = [True]

        def publish(command: Command) -> None:
            if stands[0]:
                published.append(command)

        relay = BusRelay("master", publish, RecordingLog(), lambda: stands[0])
        start = UserSync("w1", "@u:x", None, True, 5)
        relay.from_client("w1", start)
        relay.from_client("w2", UserSync("w2", "@u:x", None, True, 5))
        stands[0] = False
        relay.from_client("w2", ClearUserSync("w2"))
        for number in range(MAX_UNSENT + 5):
            relay.from_client("w1", RemoteServerUp(f"s{number}"))
        stands[0] = True
        published.clear()
        relay.joined()
        self.assertEqual(published[:2], [ClearUserSync("w1"), ClearUserSync("w2")])
        self.assertEqual(len(published), 2 + MAX_UNSENT)
        self.assertEqual(published[2], RemoteServerUp("s5"))
        relay.from_client("w1", start)
        relay.from_client("w1", ClearUserSync("w1"))
        published.clear()
        relay.joined()
        self.assertEqual(published, [])

    def test_repeats_syncing_users_for_newcomers_but_not_too_often(self) -> None:
        pubsub, published = ManualPubSub(), list[Command]()
        relay = BusRelay("master", published.append, RecordingLog())
        users: UserSyncs[str] = UserSyncs(
            pubsub.scheduler,
            Slices(pubsub.scheduler),
            lambda name: name,
            lambda name, command: None,
        )
        for name, instance in (("w1", "w1"), ("old", None), ("bus", "far")):
            users.user_sync(name, UserSync(instance, f"@{name}:x", None, True, 5))
        repeater = SyncingRepeater(pubsub.scheduler, relay, users, "bus")
        own = [
            UserSync("w1", "@w1:x", None, True, 5),
            UserSync("old", "@old:x", None, True, 5),
        ]
        for _ in range(50):
            repeater.process_joined()
        pubsub.clock.advance(REPEAT_S - 0.1)
        self.assertEqual(published, [])
        pubsub.clock.advance(0.1)
        self.assertEqual(published, own)
        published.clear()
        repeater.joined()
        self.assertEqual(published, [ClearUserSync("w1"), ClearUserSync("old"), *own])
        published.clear()
        repeater.process_joined()
        repeater.stop()
        pubsub.clock.advance(REPEAT_S)
        self.assertEqual(published, [ClearUserSync("w1"), ClearUserSync("old")])


class ReceivingFromTheBus(TestCase):
    def test_subscribes_to_user_ip_in_one_process_only(self) -> None:
        channels = Channels(MAIN)
        ip = UserIp("@a:b", "t", "127.0.0.1", "curl", None, 5)
        self.assertEqual(channels.of_command(ip), "example.org/USER_IP")
        self.assertEqual(
            channels.subscriptions(["notes"], user_ip=True), (MAIN, "example.org/USER_IP")
        )
        self.assertEqual(channels.subscriptions(["notes"], user_ip=False), (MAIN,))

    def test_leaves_out_its_own_lines(self) -> None:
        reader = BusReader("one", RecordingLog())
        lines = (
            b'RDATA notes one 1 ["a"]',
            b"POSITION notes one 0 1",
            b"FEDERATION_ACK one 5",
            b'LOCK_RELEASED ["one","lock","key"]',
            b'RDATA notes two 1 ["b"]',
            b"REPLICATE ",
        )
        expected = [Rdata("notes", "two", 1, b'["b"]'), Replicate()]
        self.assertEqual(reader.commands(lines), expected)
        self.assertEqual(reader.echoes, 4)

    def test_keeps_facts_of_its_own_process_for_its_follower(self) -> None:
        reader = BusReader("one", RecordingLog(), follows_itself=True)
        lines = (b'RDATA notes one 1 ["a"]', b"FEDERATION_ACK one 5", b"POSITION notes one 0 1")
        expected = [Rdata("notes", "one", 1, b'["a"]'), Position("notes", "one", 0, 1)]
        self.assertEqual(reader.commands(lines), expected)

    def test_logs_the_first_malformed_message_of_each_kind(self) -> None:
        log = RecordingLog()
        reader = BusReader("one", log)
        messages = (b"FOO", b"BAR", b"", b"\r", b"POSITION notes two 0 1\n", b"\xff", b"PING 1")
        self.assertEqual(reader.commands(messages), [])
        self.assertEqual((reader.bad, len(log.lines)), (5, 3))
        self.assertIn("newline at byte 22", log.lines[1][1])

    @given(st.lists(st.binary(max_size=60) | st.just(b"REPLICATE "), max_size=8))
    def test_parses_or_counts_every_message(self, messages: list[bytes]) -> None:
        reader = BusReader("one", RecordingLog())
        blank = sum(message in (b"", b"\r") for message in messages)
        commands = reader.commands(messages)
        self.assertEqual(len(commands) + reader.bad + reader.echoes + blank, len(messages))

    def test_a_master_sends_replicate_and_gets_only_commands(self) -> None:
        received: list[Command] = []
        subscriber, pubsub = MasterBusSubscriber(received.append), ManualPubSub()
        one = PubSubProcess(pubsub, "one")
        pubsub.settle()
        pubsub.published.clear()
        subscriber.connected(one.bus)
        pubsub.settle()
        self.assertEqual(pubsub.published[0], (MAIN, b"REPLICATE "))
        up = RemoteServerUp("other.org")
        subscriber.received([Rdata(NOTES.name, "two", 1, b"[]"), up, Position("a", "b", 0, 1)])
        self.assertEqual(received, [up])
