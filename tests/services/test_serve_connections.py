"""Limits on the connections of a master: who is refused, displaced or closed."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address

from synrepl.adapters.tcp.connection_table import ConnectionLimits
from synrepl.adapters.tcp.master import MAX_PENDING_REFUSALS, ClientPeer, RefusedPeer
from tests.services.test_serve import ConnectionLostReason, MasterCase, Transport
from tests.support.masters import build_listener

TOO_MANY = "ERROR too many connections; close some, or raise max_connections of this listener"


class FakeCaller:
    """A client at some address."""

    def __init__(self, case: LimitingConnections, host: str = "192.0.2.1") -> None:
        self.case = case
        self.transport = Transport()
        self.peer: Any = case.factory.buildProtocol(IPv4Address("TCP", host, 5))
        if self.peer is not None:
            self.peer.makeConnection(self.transport)

    def send(self, line: str) -> FakeCaller:
        """Say a line."""
        self.peer.dataReceived(f"{line}\n".encode())
        return self

    @property
    def refusal(self) -> str:
        """The last line that it got."""
        return self.transport.value().decode().splitlines()[-1]

    def lost(self) -> None:
        """The connection is gone."""
        self.peer.connectionLost(ConnectionLostReason)


class LimitingConnections(MasterCase):
    def setUp(self) -> None:
        super().setUp()
        self.factory = build_listener(self.world.services, ConnectionLimits(4, 3))

    def test_a_silent_connection_makes_room_for_a_new_one(self) -> None:
        silent, speaks = FakeCaller(self), FakeCaller(self).send("NAME w")
        FakeCaller(self).send("REPLICATE")
        newcomer = FakeCaller(self)
        self.assertEqual(silent.refusal, TOO_MANY)
        self.assertTrue(silent.transport.disconnecting)
        self.assertFalse(speaks.transport.disconnecting or newcomer.transport.disconnecting)
        silent.lost()
        self.assertEqual(self.master.closed, {"too_many_connections": 1})

    def test_refuses_newcomers_if_all_connections_are_in_use(self) -> None:
        clients = [FakeCaller(self).send("REPLICATE") for _ in range(3)]
        newcomer = FakeCaller(self)
        self.assertIsInstance(newcomer.peer, RefusedPeer)
        self.assertEqual(newcomer.refusal, TOO_MANY)
        self.assertTrue(newcomer.transport.disconnecting)
        self.assertEqual(self.master.closed, {"too_many_connections": 1})
        self.assertEqual(len(self.master.followers), 3)
        clients[0].lost()
        self.assertIsInstance(FakeCaller(self).peer, ClientPeer)

    def test_one_address_cannot_take_all_connections(self) -> None:
        for _ in range(3):
            FakeCaller(self).send("REPLICATE")
        self.assertIsInstance(FakeCaller(self).peer, RefusedPeer)
        self.assertIsInstance(FakeCaller(self, "192.0.2.2").peer, ClientPeer)
        self.assertIsInstance(FakeCaller(self, "192.0.2.3").send("REPLICATE").peer, ClientPeer)

    def test_survives_ten_thousand_silent_connections(self) -> None:
        worker = FakeCaller(self).send("REPLICATE")
        callers = [FakeCaller(self) for _ in range(10_000)]
        there = [caller for caller in callers if isinstance(caller.peer, ClientPeer)]
        left = [caller for caller in there if not caller.transport.disconnecting]
        self.assertEqual(len(left), 2)
        self.assertFalse(worker.transport.disconnecting)
        # Only a few refusals are pending at a time.
        self.assertLess(len(there), 100)
        refusal = [caller for caller in callers if isinstance(caller.peer, RefusedPeer)]
        self.assertEqual(len(refusal), MAX_PENDING_REFUSALS)
        for caller in callers:
            if caller.peer is not None and caller.transport.disconnecting:
                caller.lost()
        self.assertIsInstance(FakeCaller(self).peer, ClientPeer)
        self.assertEqual(len(self.factory.connections), 4)

    def test_closes_a_silent_connection_after_a_minute(self) -> None:
        silent, person = FakeCaller(self), FakeCaller(self).send("")
        self.world.clock.pump([5.0] * 13)
        self.assertEqual(
            silent.refusal,
            "ERROR nothing was said for 60 s after connecting; ask for something, with REPLICATE for example",
        )
        self.world.clock.pump([5.0] * 100)
        self.assertFalse(person.transport.disconnecting)
        person.lost()
        silent.lost()
        self.assertEqual(self.master.closed, {"never_spoke": 1, "peer_closed": 1})
