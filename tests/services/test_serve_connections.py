"""How many clients a master takes, who makes room for whom, and who is given up."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address

from synrepl.adapters.tcp.connection_table import ConnectionLimits
from synrepl.adapters.tcp.master import MAX_PENDING_REFUSALS, ClientPeer, MasterFactory, RefusedPeer
from tests.services.test_serve import ConnectionLostReason, MasterCase, Transport

TOO_MANY = "ERROR too many connections; close some, or raise max_connections of this listener"


class Caller:
    """A client at some address."""

    def __init__(self, case: Connections, host: str = "192.0.2.1") -> None:
        self.case = case
        self.transport = Transport()
        self.peer: Any = case.factory.buildProtocol(IPv4Address("TCP", host, 5))
        if self.peer is not None:
            self.peer.makeConnection(self.transport)

    def say(self, line: str) -> Caller:
        """Say a line."""
        self.peer.dataReceived(f"{line}\n".encode())
        return self

    @property
    def told(self) -> str:
        """The last line that it got."""
        return self.transport.value().decode().splitlines()[-1]

    def lost(self) -> None:
        """The connection is gone."""
        self.peer.connectionLost(ConnectionLostReason)


class Connections(MasterCase):
    def setUp(self) -> None:
        super().setUp()
        self.factory = MasterFactory(
            self.world.scheduler, self.master, "example.org", connections=ConnectionLimits(4, 3)
        )

    def test_who_has_said_nothing_makes_room(self) -> None:
        silent, speaks = Caller(self), Caller(self).say("NAME w")
        Caller(self).say("REPLICATE")
        newcomer = Caller(self)
        self.assertEqual(silent.told, TOO_MANY)
        self.assertTrue(silent.transport.disconnecting)
        self.assertFalse(speaks.transport.disconnecting or newcomer.transport.disconnecting)
        silent.lost()
        self.assertEqual(self.master.closed, {"too_many_connections": 1})

    def test_who_has_said_something_stays_and_newcomers_are_told(self) -> None:
        clients = [Caller(self).say("REPLICATE") for _ in range(3)]
        newcomer = Caller(self)
        self.assertIsInstance(newcomer.peer, RefusedPeer)
        self.assertEqual(newcomer.told, TOO_MANY)
        self.assertTrue(newcomer.transport.disconnecting)
        self.assertEqual(self.master.closed, {"too_many_connections": 1})
        self.assertEqual(len(self.master.followers), 3)
        clients[0].lost()
        self.assertIsInstance(Caller(self).peer, ClientPeer)

    def test_one_address_does_not_take_the_places_of_all(self) -> None:
        for _ in range(3):
            Caller(self).say("REPLICATE")
        self.assertIsInstance(Caller(self).peer, RefusedPeer)
        self.assertIsInstance(Caller(self, "192.0.2.2").peer, ClientPeer)
        self.assertIsInstance(Caller(self, "192.0.2.3").say("REPLICATE").peer, ClientPeer)

    def test_ten_thousand_that_say_nothing(self) -> None:
        worker = Caller(self).say("REPLICATE")
        callers = [Caller(self) for _ in range(10_000)]
        there = [caller for caller in callers if isinstance(caller.peer, ClientPeer)]
        left = [caller for caller in there if not caller.transport.disconnecting]
        self.assertEqual(len(left), 2)
        self.assertFalse(worker.transport.disconnecting)
        # Those that are still being told, or closed, are few.
        self.assertLess(len(there), 100)
        told = [caller for caller in callers if isinstance(caller.peer, RefusedPeer)]
        self.assertEqual(len(told), MAX_PENDING_REFUSALS)
        for caller in callers:
            if caller.peer is not None and caller.transport.disconnecting:
                caller.lost()
        self.assertIsInstance(Caller(self).peer, ClientPeer)
        self.assertEqual(len(self.factory.connections), 4)

    def test_who_never_says_anything_is_given_up_after_a_minute(self) -> None:
        silent, person = Caller(self), Caller(self).say("")
        self.world.clock.pump([5.0] * 13)
        self.assertEqual(
            silent.told,
            "ERROR nothing was said for 60 s after connecting; ask for something, with REPLICATE for example",
        )
        self.world.clock.pump([5.0] * 100)
        self.assertFalse(person.transport.disconnecting)
        person.lost()
        silent.lost()
        self.assertEqual(self.master.closed, {"never_spoke": 1, "peer_closed": 1})
