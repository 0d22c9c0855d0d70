"""Clients that ask and vanish: nothing of them is left, however many they are and at whatever point they go."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from urllib.parse import quote

from tests.daemon.client_api.test_syncing import SyncCase

#: A filter with which an answer is more than sockets hold.
MANY = quote('{"room":{"timeline":{"limit":100}}}')

#: Clients that are there at once.
CLIENTS = 150


class VanishedClients(SyncCase):
    """Clients of a master in this process, as sockets."""

    client_api = (
        ", max_connections: 1000, max_connections_per_address: 1000,"
        " rate_limits: {requests: {per_second: 10000, burst: 100000}}"
    )

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        running = self.master_process.running
        assert running.clients is not None
        self.server = running.clients.server
        self.reading = running.services.reading
        self.since = (await self.sync(self.bob))["next_batch"]
        await self.until(lambda: not list(self.server.connections))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something."""
        while not condition():
            await self.scheduler.sleep(0.005)

    def begin(self, path: str, cut: int | None = None) -> socket.socket:
        """Send a request, or the first bytes of it."""
        connection = socket.create_connection(("127.0.0.1", self.clients_port))
        head = (
            f"GET /_matrix/client/v3{path} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {self.bob.token}\r\n\r\n"
        )
        connection.sendall(head.encode()[:cut])
        return connection

    def poll(self, since: str | None = None) -> socket.socket:
        """Send a sync that waits."""
        return self.begin(f"/sync?timeout=60000&since={quote(since or self.since)}")

    def leave(self, connection: socket.socket, number: int) -> None:
        """End a connection: in order, or as when a machine goes away."""
        if number % 2:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    async def check_nothing_is_left(self) -> None:
        """No wait, no connection, no request, and the process goes on."""
        await self.until(lambda: not list(self.server.connections))
        self.assertEqual(len(self.reading.waits), 0)
        self.assertEqual(len(self.reading.applied.waiters), 0)
        admission = self.server.admission
        await self.until(lambda: not admission.active)
        counts = (admission.waiting, admission.queued, admission.buffered, admission.unread)
        self.assertEqual(counts, (0, 0, 0, 0))
        await self.say(self.alice, "still there")
        answer = await self.sync(self.bob, self.since)
        self.assertIn("still there", self.bodies(answer))

    async def test_waits_for_news_end_with_their_clients(self) -> None:
        for _ in range(2):
            connections = [self.poll() for _ in range(CLIENTS)]
            await self.until(lambda: len(self.reading.waits) == CLIENTS)
            for number, each in enumerate(connections):
                self.leave(each, number)
            await self.until(lambda: not len(self.reading.waits))
        # One user is watched, however many waits there were.
        self.assertLessEqual(self.reading.waits.indexed, 1)
        await self.check_nothing_is_left()

    async def test_waits_for_what_was_seen_elsewhere_end_with_their_clients(self) -> None:
        events = self.since.split("_")[1]
        ahead = self.since.replace(events, str(int(events) + 1), 1)
        connections = [self.poll(ahead) for _ in range(CLIENTS)]
        await self.until(lambda: len(self.reading.applied.waiters) == CLIENTS)
        for number, each in enumerate(connections):
            self.leave(each, number)
        await self.until(lambda: not len(self.reading.applied.waiters))
        await self.check_nothing_is_left()

    async def test_clients_may_vanish_at_any_byte_and_while_they_are_answered(self) -> None:
        path = f"/sync?timeout=60000&since={quote(self.since)}"
        connections = [self.begin(path, cut) for cut in range(1, 200, 3)]
        connections += [self.begin("/sync?full_state=true") for _ in range(40)]
        connections += [self.begin(f"{self.room}/messages?dir=b") for _ in range(40)]
        connections += [self.poll() for _ in range(40)]
        await self.until(lambda: len(self.reading.waits) >= 40)
        said = self.say(self.alice, "wakes all")  # not awaited: all vanish as they are woken
        for number, each in enumerate(connections):
            self.leave(each, number)
        await said
        await self.check_nothing_is_left()

    async def test_clients_that_do_not_read_their_answers_are_bounded(self) -> None:
        for number in range(30):
            await self.alice.say(self.room_id, "long" * 1_000, f"long {number}")
        connections = []
        for _ in range(60):
            each = self.begin(f"/sync?full_state=true&filter={MANY}")
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            connections.append(each)
        await self.until(lambda: len(list(self.server.connections)) == 60)
        # Others are answered meanwhile.
        self.assertEqual(len(self.bodies(await self.sync(self.bob))), 10)
        for number, each in enumerate(connections):
            self.leave(each, number)
        await self.check_nothing_is_left()
