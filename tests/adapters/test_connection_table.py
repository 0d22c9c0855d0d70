"""The connection table: limits of connections, and which idle one is displaced."""

from __future__ import annotations

from unittest import TestCase

from twisted.internet.address import IPv4Address, IPv6Address

from synrepl.adapters.tcp.connection_table import (
    MAX_LEAVING,
    ConnectionLimits,
    ConnectionTable,
    address_of,
)


class FakeConnection:
    """A connection that only notes that it was displaced."""

    def __init__(self) -> None:
        self.displaced = False

    def displace(self) -> None:
        """Note it."""
        self.displaced = True


class ConnectionTablePlaces(TestCase):
    def setUp(self) -> None:
        self.table: ConnectionTable[FakeConnection] = ConnectionTable(ConnectionLimits(4, 3))

    def call(self, address: str) -> FakeConnection | None:
        if not self.table.make_room(address):
            return None
        caller = FakeConnection()
        self.table.enter(caller, address)
        return caller

    def calls(self, address: str, count: int) -> list[FakeConnection]:
        found = [self.call(address) for _ in range(count)]
        return [caller for caller in found if caller is not None]

    def test_one_address_has_its_share_and_displaces_only_its_own(self) -> None:
        other = self.call("b")
        mine = self.calls("a", 4)
        self.assertEqual([caller.displaced for caller in mine], [True, False, False, False])
        assert other is not None
        self.assertFalse(other.displaced)

    def test_the_address_with_the_most_idle_ones_makes_room_for_others(self) -> None:
        mine = self.calls("a", 3)
        others = self.calls("b", 1) + self.calls("c", 2)
        self.assertEqual([caller.displaced for caller in mine], [True, True, False])
        self.assertEqual([caller.displaced for caller in others], [False] * 3)

    def test_an_active_connection_is_not_displaced(self) -> None:
        mine = self.calls("a", 3)
        for caller in mine:
            self.table.active(caller)
        self.assertIsNone(self.call("a"))
        self.assertEqual((self.table.busy, self.table.refused), (3, 1))
        self.table.idle(mine[1])
        self.assertIsNotNone(self.call("a"))
        self.assertEqual([caller.displaced for caller in mine], [False, True, False])

    def test_the_connection_idle_for_longest_is_displaced_first(self) -> None:
        first, second, third = self.calls("a", 3)
        self.table.active(first)
        self.table.idle(first)
        self.call("a")
        self.assertEqual([c.displaced for c in (first, second, third)], [False, True, False])

    def test_a_closed_connection_leaves_nothing_behind(self) -> None:
        for caller in self.calls("a", 3) + self.calls("b", 3):
            self.table.left(caller)
            self.table.left(caller)
            self.table.idle(caller)
            self.table.active(caller)
        self.assertEqual((len(self.table), self.table.busy), (0, 0))
        self.assertEqual([len(self.calls(address, 3)) for address in "ab"], [3, 3])

    def test_displaced_connections_that_do_not_close_are_bounded(self) -> None:
        self.assertEqual(len(self.calls("a", 1000)), 3 + MAX_LEAVING)
        self.assertEqual(len(self.table), 3 + MAX_LEAVING)


class Addresses(TestCase):
    def test_an_ipv6_network_counts_as_one_address(self) -> None:
        for host, wanted in (
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
            ("fe80::1%eth0", "fe80::/64"),
            ("::1", "::/64"),
        ):
            self.assertEqual(address_of(IPv6Address("TCP", host, 1)), wanted)
        self.assertEqual(address_of(IPv4Address("TCP", "192.0.2.1", 1)), "192.0.2.1")
        self.assertEqual(address_of(None), "")
