"""A port takes few connections in a turn, and rests when there are no descriptors left."""

from __future__ import annotations

import errno
import socket
from typing import Any
from unittest.mock import patch

from twisted.internet import tcp
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from synrepl.adapters.tcp.listening_port import ACCEPTS, PAUSE_S, ListeningPort
from tests.adapters.raw_http_client import reactor, turn


class Taken(Protocol):
    """Knows whether it is still there."""

    def __init__(self) -> None:
        self.there = True

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.there = False


class Taking(Factory[Protocol]):
    """Notes who comes.

    :ivar protocols: of each
    """

    noisy = False

    def __init__(self) -> None:
        self.protocols: list[Taken] = []

    def buildProtocol(self, addr: object) -> Protocol:
        protocol = Taken()
        self.protocols.append(protocol)
        return protocol


class ListeningPortAccepts(TestCase):
    timeout = 20

    def setUp(self) -> None:
        self.factory = Taking()
        self.clients: list[socket.socket] = []
        self.later: list[tuple[float, Any]] = []

    async def tearDown(self) -> None:  # type: ignore[override]
        for client in self.clients:
            client.close()
        await self.port.stopListening()
        while any(protocol.there for protocol in self.factory.protocols):
            await turn()

    def listen(self, places: int = 1_000) -> None:
        self.port: Any = ListeningPort(0, self.factory, "127.0.0.1", reactor, places)
        self.port.startListening()

    def connect(self, count: int) -> None:
        address = self.port.socket.getsockname()
        for _ in range(count):
            self.clients.append(socket.create_connection(address, timeout=10))

    async def test_accepts_a_bounded_number_of_connections_per_turn(self) -> None:
        self.listen()
        self.connect(5 * ACCEPTS)
        self.assertEqual(self.factory.protocols, [])
        for nth in range(1, 6):
            self.port.doRead()
            self.assertEqual(len(self.factory.protocols), nth * ACCEPTS)

    async def test_accepts_fewer_where_new_connections_displace_others(self) -> None:
        self.listen(places=6)
        self.connect(10)
        self.port.doRead()
        self.assertEqual(len(self.factory.protocols), 2)

    async def test_pauses_without_descriptors_and_resumes_by_itself(self) -> None:
        self.listen()
        self.port.reactor = self
        self.connect(1)

        class NoDescriptors:
            """A listening socket of a process that has none left."""

            def accept(self) -> None:
                raise OSError(errno.EMFILE, "Too many open files")

        with (
            patch.object(self.port, "socket", NoDescriptors()),
            patch.object(tcp, "_reservedFD", tcp._NullFileDescriptorReservation()),
            patch.object(self.port, "stopReading") as stop,
        ):
            self.port.doRead()
            self.assertEqual((stop.call_count, self.later), (0, []))
            self.port.doRead()
        self.assertEqual(stop.call_count, 1)
        ((seconds, go_on),) = self.later
        self.assertEqual(seconds, PAUSE_S)
        self.port.reactor = reactor
        go_on()
        while not self.factory.protocols:
            await turn()

    def callLater(self, seconds: float, call: Any) -> None:
        """As a reactor's; only noted."""
        self.later.append((seconds, call))
