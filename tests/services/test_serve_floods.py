"""Clients that send very many commands: cost per line, waiting, and limits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any
from unittest.mock import patch

from synrepl.adapters.tcp.master import BYTES_PER_UNIT, PIECE_BYTES, MasterFactory
from synrepl.core.slices import UNITS, Slices
from synrepl.services.serving import client_relay, federation_acks, user_sync
from synrepl.services.serving.master import Master
from synrepl.wire.commands import ClearUserSync, UserSync
from synrepl.wire.session import SessionLimits
from tests.services.test_serve import Client, MasterCase
from tests.services.world import MasterWorld

#: What a turn reads of all clients together, at most.
BYTES_OF_A_TURN = UNITS * BYTES_PER_UNIT + PIECE_BYTES


class SlowConsumer:
    """A consumer of events that is as far behind as a test sets.

    :ivar full: it is
    """

    def __init__(self, world: MasterWorld) -> None:
        self.full = False
        self._world = world
        self._waiting: list[Any] = []

    async def room(self) -> None:
        """Wait for :meth:`free`."""
        if self.full:
            waiting = self._world.scheduler.promise()
            self._waiting.append(waiting)
            await waiting

    def free(self) -> None:
        """There is room."""
        self.full = False
        waiting, self._waiting = self._waiting, []
        for promise in waiting:
            promise.callback(None)


def function_calls(work: Callable[[], object]) -> int:
    """The number of calls that some work makes, of Python and of built-in functions."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


class FloodCase(MasterCase):
    """A :class:`Master` alone, whose turns a test counts.

    It is made here, not assembled, because a test decides when the consumer of its events is
    behind, and how long reading a page takes.

    :ivar pages: how often rows were read
    """

    def setUp(self) -> None:
        super().setUp()
        world = self.world
        self.slices = Slices(world.scheduler)
        self.behind = SlowConsumer(world)
        self.pages = 0
        self.master = Master(
            world.scheduler,
            world.catalogue,
            world.announcer.states,
            world.publisher,
            self,
            lambda name, command: self.events.append((name, command)),
            self.log,
            slices=self.slices,
            capacity=self.behind,
            senders=["s0", "s1"],
        )
        self.factory = self.factory_with(SessionLimits(queued_lines=20_000))

    def factory_with(self, limits: SessionLimits) -> MasterFactory:
        """A listener of the master with these limits."""
        return MasterFactory(
            self.world.scheduler, self.master, "example.org", limits=limits, slices=self.slices
        )

    async def page(self, *wanted: Any) -> Any:
        """Rows, counted."""
        self.pages += 1
        return await self.world.store.page(*wanted)

    def pour(self, client: Client, *lines: str) -> None:
        """Have lines read, as one read of the socket, without letting another turn pass."""
        client.peer.dataReceived("".join(f"{line}\n" for line in lines).encode())

    def turn(self) -> None:
        """One turn of the reactor: calls that it makes are for the next one."""
        clock = self.world.clock
        now, clock.calls = clock.calls, []
        for call in sorted(now, key=lambda call: call.getTime()):
            if call.getTime() > clock.seconds():
                clock.calls.append(call)
            else:
                call.called = 1
                call.func(*call.args, **call.kw)
        clock.calls.sort(key=lambda call: call.getTime())

    def turns(self, until: Callable[[], bool]) -> int:
        """How many turns it takes."""
        count = 0
        while not until():
            self.turn()
            count += 1
            assert count < 100_000, "it never comes"
        return count

    def positions(self, client: Client) -> int:
        """How many positions of `jobs` a client has received."""
        return sum(line.startswith("POSITION jobs ") for line in client.received())


class FloodsOfCommands(FloodCase):
    def test_reads_a_flood_in_pieces_while_the_socket_waits(self) -> None:
        flood, other = self.client("NAME flood"), self.client("NAME other")
        lines = [f"USER_SYNC i @u{n}:x start 5" for n in range(2_000)]
        self.pour(flood, *lines)
        self.assertLess(self.master.user_syncs.count, 500)
        self.assertEqual(flood.transport.producerState, "paused")
        before = self.master.user_syncs.count
        other.peer.dataReceived(b"USER_SYNC j @other:x start 5\n")
        self.turn()
        taken = self.master.user_syncs.count - before
        self.assertIn("@other:x", self.master.user_syncs.users())
        self.assertLess(taken, BYTES_OF_A_TURN // len(lines[0]))
        self.turns(lambda: self.master.user_syncs.count == 2_001)
        self.turn()
        self.assertEqual(flood.transport.producerState, "producing")

    def test_bounds_the_work_per_turn_however_many_clients_flood(self) -> None:
        clients = [self.client("REPLICATE") for _ in range(20)]
        for client in clients:
            self.pour(client, *[f"USER_SYNC i @u{n}:x start 5" for n in range(1_500)])
        total, before = 20 * 1_500, self.master.commands["USER_SYNC"]
        while before < total:
            self.turn()
            now = self.master.commands["USER_SYNC"]
            self.assertLessEqual(now - before, BYTES_OF_A_TURN // 25)
            before = now

    def test_ignores_commands_after_a_protocol_error(self) -> None:
        client = self.client("NAME x")
        self.pour(client, *["USER_SYNC i @u:x start 5"] * 1_000, "NONSENSE")
        self.pour(client, *["USER_SYNC i @v:x start 5"] * 1_000)
        self.turns(lambda: client.transport.disconnecting)
        client.send("USER_SYNC i @w:x start 5")
        self.assertEqual(self.master.commands["USER_SYNC"], 1_000)

    def test_survives_the_loss_of_a_flooding_connection(self) -> None:
        client = self.client("NAME x")
        self.pour(client, *["USER_SYNC i @u:x start 5"] * 2_000)
        client.lost()
        self.world.clock.advance(0)
        self.assertLess(self.master.commands["USER_SYNC"], 500)
        self.assertEqual((self.master.followers, self.master.user_syncs.count), ({}, 0))

    def test_a_client_that_sends_events_waits_while_their_consumers_are_behind(self) -> None:
        speaker, listener = self.client("NAME speaker", "PING 1"), self.client("NAME listener")
        self.behind.full = True
        self.pour(speaker, "USER_SYNC i @u:x start 5")
        self.pour(speaker, "USER_SYNC i @v:x start 5")
        self.pour(listener, "REPLICATE")
        self.assertEqual(self.positions(listener), 1, "it has said nothing for them")
        self.assertEqual(self.master.user_syncs.users(), {"@u:x"})
        self.assertEqual(speaker.transport.producerState, "paused")
        self.world.clock.pump([1.0] * 60)
        self.assertFalse(speaker.transport.disconnecting, "who is not read is not silent")
        self.behind.free()
        self.world.clock.advance(0)
        self.assertEqual(self.master.user_syncs.users(), {"@u:x", "@v:x"})
        self.assertEqual(speaker.transport.producerState, "producing")


class FloodsOfReplicate(FloodCase):
    def test_answers_repeated_replicate_at_most_once_per_piece(self) -> None:
        client = self.client("NAME x")
        client.received()
        self.pour(client, *["REPLICATE"] * 6_000)
        self.world.clock.advance(0)
        self.assertLess(self.positions(client), 2 + 6_000 * len("REPLICATE\n") // PIECE_BYTES)
        client.send("REPLICATE")
        self.assertEqual(self.positions(client), 1)

    def test_answers_each_replicate_that_comes_alone(self) -> None:
        client = self.client("NAME x")
        for _ in range(5):
            client.send("REPLICATE")
            self.assertEqual(self.positions(client), 1)

    def test_reads_missed_rows_at_most_once_per_piece(self) -> None:
        self.append("a", "b")
        client = self.client("NAME x")
        client.received()
        self.pour(client, *["REPLICATE jobs 0"] * 6_000)
        self.world.clock.advance(0)
        received = client.received()
        self.assertLess(self.pages, 2 + 6_000 * len("REPLICATE jobs 0\n") // PIECE_BYTES)
        self.assertEqual(received[-1], "POSITION jobs 2")
        self.append("c")
        self.assertEqual(client.received(), ['RDATA jobs 3 [0,"c",null]'])

    def test_reads_only_one_page_for_a_client_that_does_not_read(self) -> None:
        for _ in range(30):
            self.append(*["x" * 100] * 100)
        client = self.client("NAME x")
        client.peer.pauseProducing()
        for _ in range(50):
            self.pour(client, "REPLICATE jobs 0")
            self.world.clock.advance(0)
        self.assertEqual(self.pages, 1)
        self.assertEqual(len(self.master.followers[client.peer].catching_up), 1)

    def test_bounds_the_pages_read_concurrently(self) -> None:
        self.append("a")
        reading: list[Any] = []
        page = self.world.store.page

        async def slowly(*wanted: Any) -> Any:
            promise = self.world.scheduler.promise()
            reading.append(promise)
            await promise
            return await page(*wanted)

        with patch.object(self, "page", slowly):
            clients = [self.client("REPLICATE jobs 0") for _ in range(10)]
            done = 0
            while reading:
                self.assertLessEqual(len(reading), 4)
                reading.pop(0).callback(None)
                self.world.clock.advance(0)
                done += 1
        self.assertEqual(done, 10)
        self.assertEqual([client.received()[-1] for client in clients], ["POSITION jobs 1"] * 10)

    def test_answers_nothing_on_a_closing_connection(self) -> None:
        client = self.client("NAME x")
        client.received()
        self.pour(client, *["REPLICATE"] * 100, "REPLICATE nosuch 5")
        self.world.clock.advance(0)
        self.assertEqual(self.positions(client), 0)


class FloodsOfUsers(FloodCase):
    def test_a_user_sync_costs_the_same_however_many_instances_there_are(self) -> None:
        client = self.client("REPLICATE")
        costs = [
            function_calls(partial(client.send, f"USER_SYNC i{n} @u:x start 5")) for n in range(500)
        ]
        self.assertEqual(self.master.user_syncs.count, 500)
        self.assertLess(median(costs[-50:]), 1.5 * median(costs[:50]))

    def test_limits_the_instances_of_a_connection(self) -> None:
        with patch.object(user_sync, "MAX_INSTANCES_OF_CONNECTION", 10):
            client = self.client("NAME w", "REPLICATE")
            client.send(*[f"USER_SYNC i{n} @u:x start 5" for n in range(100)])
        self.assertEqual(self.master.user_syncs.count, 10)
        self.assertEqual(self.master.ignored, {"TooManyInstances": 90})
        self.assertEqual(len(self.events), 10, "ignored commands reach no handler")
        self.assertEqual(len(self.log.lines), 1)
        self.assertIn("w: this connection speaks for 10 instances", self.log.lines[0][1])
        client.send("USER_SYNC i1 @u:x end 6", "USER_SYNC i10 @u:x start 6")
        self.assertEqual(self.master.user_syncs.count, 10, "one has made room")

    def test_limits_the_users_of_one_connection_and_of_all(self) -> None:
        with (
            patch.object(user_sync, "MAX_USERS_OF_CONNECTION", 5),
            patch.object(user_sync, "MAX_USERS", 8),
        ):
            for name in ("a", "b"):
                client = self.client(f"NAME {name}", "REPLICATE")
                client.send(*[f"USER_SYNC {name} @u{n}:x start 5" for n in range(10)])
        self.assertEqual(self.master.user_syncs.count, 8)
        self.assertEqual(self.master.ignored, {"TooManySyncingUsers": 12})
        self.assertEqual(len(self.log.lines), 2)

    def test_refuses_a_user_name_that_is_too_long(self) -> None:
        client = self.client("REPLICATE", f"USER_SYNC i @{'u' * 600}:x start 5")
        self.assertFalse(client.transport.disconnecting)
        self.assertEqual((self.master.user_syncs.count, self.events), (0, []))
        self.assertEqual(self.master.ignored, {"UserTooLong": 1})

    def test_the_end_of_an_unknown_user_leaves_no_state(self) -> None:
        client = self.client("REPLICATE")
        client.send(*[f"USER_SYNC i{n} @u:x end 5" for n in range(2_000)])
        self.assertEqual(self.master.user_syncs.by_instance(), {})

    def synced(self, instance: str, count: int, *hello: str) -> Client:
        """A client through which so many users sync, all of one instance."""
        client = self.client(*hello)
        users = [f"USER_SYNC {instance} @u{n}:x start 5".replace("  ", " ") for n in range(count)]
        client.send(*users)
        self.turns(lambda: self.master.user_syncs.count == count)
        self.assertEqual(len(self.master.user_syncs.users()), count)
        self.events.clear()
        return client

    def test_reports_a_lost_instance_by_one_command_and_forgets_it_in_slices(self) -> None:
        client = self.synced("i", 60_000, "NAME new", "REPLICATE")
        client.lost()
        self.assertEqual(self.events, [("new", ClearUserSync("i"))])
        self.assertEqual(self.master.user_syncs.by_instance(), {})
        before = self.master.user_syncs.count
        self.assertGreater(before, 0)
        while before:
            self.turn()
            now = self.master.user_syncs.count
            self.assertLessEqual(before - now, 100 * UNITS)
            before = now
        self.assertEqual(self.master.user_syncs.users(), set())

    def test_reports_lost_users_of_a_legacy_client_in_slices_at_the_pace_of_consumers(
        self,
    ) -> None:
        client = self.synced("", 3_000, "NAME old", "REPLICATE jobs NOW")
        client.lost()
        self.assertLessEqual(len(self.events), UNITS)
        self.behind.full = True
        for _ in range(20):
            self.turn()
        self.assertLessEqual(len(self.events), UNITS + 1)
        self.behind.free()
        while len(self.events) < 3_000:
            before = len(self.events)
            self.turn()
            self.assertLessEqual(len(self.events) - before, UNITS)
        self.assertEqual(self.master.user_syncs.count, 0)
        self.assertEqual({type(command) for _, command in self.events}, {UserSync})

    def test_keeps_users_of_a_worker_that_reconnected_before_its_old_connection_was_lost(
        self,
    ) -> None:
        old = self.synced("i", 3, "NAME w", "REPLICATE")
        new = self.client("NAME w", "REPLICATE", "USER_SYNC i @u1:x start 7")
        self.events.clear()
        old.lost()
        ended = {command.user for _, command in self.events if isinstance(command, UserSync)}
        self.assertEqual((ended, len(self.events)), ({"@u0:x", "@u2:x"}, 2))
        self.assertEqual(self.master.user_syncs.users(), {"@u1:x"})
        new.lost()
        self.assertEqual(self.events[-1], ("w", ClearUserSync("i")))

    def test_clears_many_users_in_slices(self) -> None:
        client = self.synced("i", 60_000, "NAME new", "REPLICATE")
        client.send("CLEAR_USER_SYNC i")
        self.assertEqual(self.events, [("new", ClearUserSync("i"))])
        self.turns(lambda: self.master.user_syncs.count == 0)
        self.assertEqual(self.master.user_syncs.by_instance(), {})
        # That connection no longer speaks for the instance, so another one is its only one.
        other = self.client("NAME other", "REPLICATE", "USER_SYNC i @u1:x start 7")
        other.lost()
        self.assertEqual(self.events[-1], ("other", ClearUserSync("i")))


class FloodsOfAcknowledgements(FloodCase):
    def test_limits_the_senders_of_a_connection(self) -> None:
        most = federation_acks.MAX_SENDERS_OF_CONNECTION
        client = self.client("NAME f", "REPLICATE")
        client.send(*[f"FEDERATION_ACK s{n} 0" for n in range(2, most + 52)])
        self.assertEqual(self.master.ignored, {"UnexpectedSender": most, "TooManySenders": 50})
        self.assertEqual((len(self.events), self.master.federation_acks.floor), (most, None))
        self.assertEqual(len(self.master.federation_acks.unexpected_senders), most)
        client.send("FEDERATION_ACK s0 0", "FEDERATION_ACK s1 0")
        self.assertEqual(self.master.federation_acks.floor, 0)
        client.lost()
        self.assertEqual(self.master.federation_acks.unexpected_senders, set())


class FloodsOfRemoteServerUp(FloodCase):
    def test_relays_servers_in_slices(self) -> None:
        others = [self.client("REPLICATE") for _ in range(50)]
        speaker = self.client("REPLICATE")
        for other in others:
            other.received()
        self.pour(speaker, *[f"REMOTE_SERVER_UP s{n}.example" for n in range(300)])

        def lines() -> int:
            return sum(other.transport.value().count(b"REMOTE") for other in others)

        while lines() < 300 * 50:
            before = lines()
            self.turn()
            self.assertLessEqual(lines() - before, UNITS)
        self.assertEqual(
            others[7].received(), [f"REMOTE_SERVER_UP s{n}.example" for n in range(300)]
        )

    def test_relays_a_queued_server_once(self) -> None:
        others = [self.client("REPLICATE") for _ in range(100)]
        speaker = self.client("REPLICATE")
        self.pour(speaker, *["REMOTE_SERVER_UP a.example"] * 1_000)
        self.world.clock.advance(0)
        self.assertLess(others[0].transport.value().count(b"REMOTE"), 50)

    def test_skips_a_client_with_many_queued_lines(self) -> None:
        slow, speaker = self.client("REPLICATE"), self.client("REPLICATE")
        slow.peer.pauseProducing()
        for _ in range(10):
            speaker.send(*[f"REMOTE_SERVER_UP s{n}.example" for n in range(300)])
        self.assertFalse(slow.transport.disconnecting)
        self.assertEqual(slow.peer.queued_lines, client_relay.MAX_QUEUED_LINES)

    def test_refuses_a_server_name_that_is_too_long(self) -> None:
        other, speaker = self.client("REPLICATE"), self.client("REPLICATE")
        speaker.send(f"REMOTE_SERVER_UP {'x' * 300}.example")
        self.assertNotIn(b"REMOTE", other.transport.value())
        self.assertEqual((self.master.ignored, self.events), ({"ServerNameTooLong": 1}, []))

    def test_skips_a_client_whose_line_limit_is_too_low(self) -> None:
        self.factory = self.factory_with(SessionLimits(line=256, peer_line=256))
        short = self.client("REPLICATE")
        self.factory = self.factory_with(SessionLimits())
        speaker, other = self.client("REPLICATE"), self.client("REPLICATE")
        server = "x" * 245
        speaker.send(f"REMOTE_SERVER_UP {server}")
        self.assertNotIn(b"REMOTE", short.transport.value())
        self.assertIn(server.encode(), other.transport.value())
