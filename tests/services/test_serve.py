"""A master and its clients, as transcripts: real sessions and peers over transports in memory."""

from __future__ import annotations

from typing import Any

from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.tcp.master import ClientPeer
from synrepl.services.serving.federation_acks import FederationAcks, UnexpectedSender
from synrepl.services.serving.master import COMMAND_HANDLERS, NoCachesStream
from synrepl.wire.commands import ClearUserSync, Command, UserSync
from tests.services.world import MasterWorld, done, started
from tests.support.masters import build_listener


class Transport(StringTransport):
    """What is written stays to be read, as over TCP."""

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Nothing."""

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Nothing."""


class Client:
    """The other end of one connection."""

    def __init__(self, case: MasterCase, *sent: str) -> None:
        self.case = case
        self.transport = Transport()
        self.peer: Any = case.factory.buildProtocol(None)
        self.peer.makeConnection(self.transport)
        self.send(*sent)

    def send(self, *lines: str) -> None:
        """Say lines, and let the master act."""
        self.peer.dataReceived("".join(f"{line}\n" for line in lines).encode())
        self.case.world.clock.advance(0)

    def received(self, *, greeting: bool = False) -> list[str]:
        """The lines since the last time."""
        lines = self.transport.value().decode().splitlines()
        self.transport.clear()
        return lines if greeting else [x for x in lines if x.split()[0] not in ("SERVER", "PING")]

    def lost(self) -> None:
        """The connection breaks."""
        self.peer.connectionLost(ConnectionLostReason)


class _Reason:
    def getErrorMessage(self) -> str:
        return "cut"


ConnectionLostReason: Any = _Reason()


class MasterCase(SynchronousTestCase):
    """A master and its listener.

    :ivar events: the commands that its handler got, each with its source
    """

    def setUp(self) -> None:
        self.world: MasterWorld = started(senders=("sender1", "sender2"), queued_lines=20)
        self.addCleanup(self.world.stop)
        self.events: list[tuple[str, Command]] = self.world.recorder.commands
        self.log = self.world.log
        self.master = self.world.master
        self.factory = build_listener(self.world.services)

    def append(self, *notes: str) -> None:
        rows = ",".join(f'[{n},"{note}",null]' for n, note in enumerate(notes))
        done(self.world.intake.append("jobs", f"[{rows}]".encode()))
        self.world.clock.advance(0)

    def client(self, *sent: str) -> Client:
        return Client(self, *sent)


class Replicate(MasterCase):
    def test_greets_a_client_with_its_server_name(self) -> None:
        server, ping = self.client().received(greeting=True)
        self.assertEqual((server, ping.split()[0]), ("SERVER example.org", "PING"))

    def test_a_legacy_client_gets_rows_after_its_token(self) -> None:
        self.append("a", "b")
        client = self.client("REPLICATE jobs 1")
        self.assertEqual(client.received(), ['RDATA jobs 2 [1,"b",null]', "POSITION jobs 2"])
        self.append("c")
        self.assertEqual(client.received(), ['RDATA jobs 3 [0,"c",null]'])

    def test_a_legacy_client_may_start_now_beyond_or_before_everything(self) -> None:
        self.append("a")
        for token, rows in (
            ("NOW", []),
            ("now", []),
            ("99", []),
            ("-1", ['RDATA jobs 1 [0,"a",null]']),
        ):
            with self.subTest(token):
                client = self.client(f"REPLICATE jobs {token}")
                self.assertEqual(client.received(), [*rows, "POSITION jobs 1"])

    def test_a_legacy_client_may_request_all_streams(self) -> None:
        self.append("a")
        received = self.client("REPLICATE ALL 0").received()
        self.assertIn('RDATA jobs 1 [0,"a",null]', received)
        positions = [line.split()[1] for line in received if line.startswith("POSITION")]
        self.assertEqual(len(positions), len(set(positions)))
        self.assertNotIn("presence_federation", positions)  # those servers did not have it

    def test_a_legacy_client_may_request_a_stream_again(self) -> None:
        self.append("a")
        client = self.client("REPLICATE jobs NOW", "REPLICATE jobs 0")
        self.assertEqual(client.received()[-1], "POSITION jobs 1")
        self.append("b")
        self.assertEqual(client.received(), ['RDATA jobs 2 [0,"b",null]'])

    def test_a_modern_client_gets_positions_and_then_live_rows(self) -> None:
        self.append("a")
        client, silent = self.client("REPLICATE "), self.client()
        self.assertIn("POSITION jobs master 1 1", client.received())
        silent.received()
        self.append("b")
        self.assertEqual(client.received(), ['RDATA jobs master 2 [0,"b",null]'])
        self.assertEqual(silent.received(), [])  # it has not asked

    def test_answers_only_the_client_that_asked(self) -> None:
        first = self.client("REPLICATE")
        first.received()
        self.client("REPLICATE")
        self.assertEqual(first.received(), [])

    def test_refuses_an_unknown_stream(self) -> None:
        client = self.client("REPLICATE job 0", "REPLICATE jobs 0")
        self.assertEqual(client.received(), ["ERROR there is no stream 'job'; did you mean jobs?"])
        self.assertTrue(client.transport.disconnecting)
        client.lost()
        self.assertEqual(self.master.closed, {"replicate_refused": 1})

    def test_refuses_a_range_that_is_trimmed(self) -> None:
        small = started(max_rows_per_stream=2)
        self.addCleanup(small.stop)
        self.world, before = small, self.world
        self.addCleanup(setattr, self, "world", before)
        self.factory = build_listener(small.services)
        self.append("a", "b", "c")
        (error,) = self.client("REPLICATE jobs 0").received()
        self.assertRegex(error, "^ERROR stream 'jobs' has been trimmed up to 2;")

    def test_skips_trimmed_rows_of_an_ephemeral_stream(self) -> None:
        """A real worker that got an ERROR would come back with the same token for ever."""
        body = b'[["f",["a"],1],["f",["b"],2],["f",["c"],3]]'
        done(self.world.intake.append("caches", body))
        self.world.clock.advance(1)
        done(self.world.store.trim(self.world.catalogue["caches"], 2, 0, 10))
        client = self.client("NAME old", "REPLICATE caches 1")
        self.assertEqual(client.received(), ['RDATA caches 3 ["f",["c"],3]', "POSITION caches 3"])
        lost = "old asks for caches above 1, which is trimmed up to 2; it misses these facts"
        self.assertEqual(self.log.lines, [("warn", lost)])
        done(self.world.store.trim(self.world.catalogue["caches"], 3, 0, 10))
        self.assertEqual(self.client("REPLICATE caches 0").received(), ["POSITION caches 3"])


class LiveAndCatchUpLanes(MasterCase):
    def test_sends_a_slow_client_the_reason_for_disconnecting_it(self) -> None:
        client = self.client("NAME slowpoke", "REPLICATE jobs NOW")
        client.received()
        client.peer.pauseProducing()  # as a full transport does
        for _ in range(2):
            self.append(*"abcdefghij")
        self.world.clock.advance(7)
        self.append(*"abcdefghij")
        received = client.received()
        self.assertEqual(received[-1], "ERROR Failed to keep up")
        self.assertEqual(len([line for line in received if line.startswith("RDATA")]), 20)
        self.assertTrue(client.transport.disconnecting)
        # The operator is informed at once, however long the client takes to go.
        (line,) = (line for level, line in self.log.lines if level == "warn")
        self.assertRegex(
            line, r"SLOW CLIENT CUT OFF: \S+ at \S+ does not read: 20 lines \(\d+ bytes\)"
        )
        (cut,) = self.master.slow_clients.to_json()["latest"]
        self.assertEqual((cut["name"], cut["queued_lines"]), ("slowpoke", 20))
        self.assertEqual(cut["waited_s"], 7.0)
        client.lost()
        self.assertEqual(self.master.closed, {"failed_to_keep_up": 1})

    def test_catch_up_waits_for_a_slow_reader(self) -> None:
        for _ in range(10):
            self.append(*"abcdefghij")
        client = self.client()
        client.received()
        client.peer.pauseProducing()
        client.send("REPLICATE jobs 0")
        self.append("later")
        self.assertEqual(client.received(), [])
        client.peer.resumeProducing()
        self.world.clock.advance(0)
        received = client.received()
        self.assertEqual(len(received), 102)
        self.assertEqual(received[-1], "POSITION jobs 101")

    def test_informs_every_client_that_it_is_shutting_down(self) -> None:
        clients = [self.client("REPLICATE"), self.client("REPLICATE jobs NOW"), self.client()]
        for client in clients:
            client.received()
        self.master.shut_down()
        for client in clients:
            self.assertEqual(client.received(), ["ERROR server shutting down"])

    def test_disconnects_a_client_that_stopped_pinging(self) -> None:
        armed, free = self.client("PING 1"), self.client("NAME netcat")
        self.world.clock.pump([1.0] * 16)
        self.assertEqual(armed.received(), ["ERROR ping timeout"])
        self.assertEqual(free.received(), [])
        free.lost()


class TableOfCommands(SynchronousTestCase):
    def test_has_every_command(self) -> None:
        """A new command is either handled, or said to need nothing."""
        self.assertEqual(set(COMMAND_HANDLERS), set(Command.__subclasses__()))


class RelayingCommands(MasterCase):
    def test_relays_remote_server_up_to_the_other_clients(self) -> None:
        clients = [self.client("REPLICATE jobs NOW") for _ in range(2)] + [self.client("REPLICATE")]
        for client in clients:
            client.received()
        clients[0].send("REMOTE_SERVER_UP far.example")
        received = [client.received() for client in clients]
        self.assertEqual(received, [[], *[["REMOTE_SERVER_UP far.example"]] * 2])

    def test_tracks_syncing_users(self) -> None:
        legacy = self.client("NAME old", "REPLICATE jobs NOW", "USER_SYNC @a:x start 5")
        modern = self.client("NAME new", "REPLICATE", "USER_SYNC i1 @b:x start 6")
        modern.send(
            "USER_SYNC i2 @c:x start 7", "USER_SYNC i2 @d:x start 8", "USER_SYNC i2 @d:x end 9"
        )
        self.assertEqual(self.master.user_syncs.users(), {"@a:x", "@b:x", "@c:x"})
        modern.send("CLEAR_USER_SYNC i1")
        self.assertEqual(self.master.user_syncs.users(), {"@a:x", "@c:x"})
        self.events.clear()
        modern.lost()
        self.assertEqual(self.master.user_syncs.users(), {"@a:x"})
        self.assertEqual(self.events, [("new", ClearUserSync("i2"))])
        self.events.clear()
        legacy.lost()
        self.assertEqual(self.master.user_syncs.users(), set())
        # Its dialect has no word for an instance that is gone.
        self.assertEqual(self.events, [("old", UserSync(None, "@a:x", None, False, 5))])

    def federate(self, count: int) -> None:
        """Append to the federation stream."""
        rows = ",".join(['["k",{}]'] * count)
        done(self.world.intake.append("federation", f"[{rows}]".encode()))
        self.world.clock.advance(0)

    def test_the_slowest_federation_sender_is_the_floor_even_while_it_is_away(self) -> None:
        acks = self.master.federation_acks
        self.federate(9)
        one = self.client("REPLICATE", "FEDERATION_ACK sender1 7")
        self.assertEqual((acks.floor, acks.held_by), (None, "sender2"))
        self.client("REPLICATE", "FEDERATION_ACK sender2 5")
        self.assertEqual((acks.floor, acks.held_by), (5, "sender2"))
        one.send("FEDERATION_ACK sender1 3")  # it has started again
        self.assertEqual((acks.floor, acks.held_by), (3, "sender1"))
        one.lost()
        self.assertEqual((acks.floor, acks.held_by), (3, "sender1"))

    def test_ignores_an_acknowledgement_beyond_the_stream(self) -> None:
        self.federate(3)
        client = self.client("NAME w", "REPLICATE", "FEDERATION_ACK sender1 4")
        client.send("FEDERATION_ACK sender3 2", "FEDERATION_ACK sender1 5")
        self.assertEqual(
            dict(self.master.federation_acks.senders), {"sender1": None, "sender2": None}
        )
        self.assertEqual(self.master.ignored, {"AckBeyondStream": 2, "UnexpectedSender": 1})
        beyond, unexpected = [text for level, text in self.log.lines if level == "warn"]
        self.assertIn(
            "'sender1' acknowledges the federation stream up to 4, which is only at 3", beyond
        )
        self.assertIn("name it there", unexpected)
        # What it means elsewhere is for handlers, and for the bus, to say.
        self.assertEqual(len(self.events), 3)

    def test_identifies_a_legacy_sender_by_the_name_of_its_connection(self) -> None:
        self.federate(3)
        self.client("NAME sender2", "REPLICATE federation NOW", "FEDERATION_ACK 2")
        self.assertEqual(self.master.federation_acks.senders["sender2"], 2)

    def test_the_only_sender_needs_no_name(self) -> None:
        acks: FederationAcks[str] = FederationAcks(["sender1"], lambda: 5)
        acks.acknowledge("connection", None, 4, "127.0.0.1:5")
        self.assertEqual(acks.floor, 4)

    def test_carries_out_commands_of_its_own_handlers(self) -> None:
        client = self.client("REPLICATE")
        client.received()
        commands = self.world.services.access.commands
        commands.user_sync("@u:x", True, at=5)
        commands.remote_server_up("far.example")
        commands.remove_pusher("app", "key", "@u:x")
        with self.assertRaisesRegex(UnexpectedSender, "'master' acknowledges"):
            commands.federation_ack(0)
        self.world.clock.advance(0)
        self.assertEqual(client.received(), ["REMOTE_SERVER_UP far.example"])
        self.assertEqual(self.master.user_syncs.by_instance(), {"master": {"@u:x"}})
        self.assertEqual(
            [(name, command.verb) for name, command in self.events],
            [("master", verb) for verb in ("USER_SYNC", "REMOTE_SERVER_UP", "REMOVE_PUSHER")],
        )
        commands.clear_user_syncs()
        self.assertFalse(self.master.user_syncs.is_syncing("@u:x"))

    def test_refuses_to_invalidate_a_cache_if_another_process_writes_caches(self) -> None:
        commands = MasterWorld(others=("caches",)).services.access.commands
        with self.assertRaisesRegex(NoCachesStream, "does not write the stream 'caches'"):
            commands.invalidate_cache("users", ["@u:x"])

    def test_passes_events_to_handlers(self) -> None:
        client = self.client("NAME worker", "REPLICATE jobs NOW")
        lines = [
            "REMOVE_PUSHER app key @a:x",
            'INVALIDATE_CACHE get_user_by_id ["@a:x"]',
            'USER_IP @a:x ["token", "10.0.0.1", "agent", "DEV", 5]',
            "FEDERATION_ACK 4",
        ]
        client.send(*lines)
        self.assertEqual(
            [(name, command.verb) for name, command in self.events],
            [("worker", line.split()[0]) for line in lines],
        )
        self.assertEqual(self.master.commands["USER_IP"], 1)


class LosingConnections(MasterCase):
    def test_forgets_a_client_with_its_connection(self) -> None:
        client = self.client("REPLICATE")
        self.assertIsInstance(next(iter(self.master.followers)), ClientPeer)
        client.lost()
        self.append("a")  # goes nowhere
        self.assertEqual((self.master.followers, self.master.closed), ({}, {"peer_closed": 1}))
