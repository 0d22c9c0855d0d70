from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from synrepl.federation.discovery import (
    MAX_RECORDS,
    BadWellKnown,
    DiscoveryStep,
    NoSuchService,
    ServerRoute,
    ServiceNeeded,
    ServiceRecord,
    WellKnownNeeded,
    delegated_name,
    discover,
    order_records,
    run_discovery,
)
from synrepl.federation.server_names import HostPort, UnusableServerName, parse_server_name
from synrepl.rooms import check_server_name

HOST = "a.example"


def first() -> float:
    """No luck at all."""
    return 0.0


class Network:
    """Delegations by host and SRV records by service; everything that was looked up."""

    def __init__(
        self,
        delegations: Mapping[str, str] | None = None,
        services: Mapping[str, Sequence[ServiceRecord]] | None = None,
    ) -> None:
        self.asked: list[DiscoveryStep] = []
        self._delegations = {} if delegations is None else delegations
        self._services = {} if services is None else services

    def look_up(self, step: DiscoveryStep) -> object:
        """What there is."""
        self.asked.append(step)
        if isinstance(step, WellKnownNeeded):
            return self._delegations.get(step.host)
        return self._services.get(step.service, ())

    def route(self, name: str) -> ServerRoute:
        """How a server is reached."""
        return run_discovery(discover(name, first), self.look_up)


class FollowsTheSteps(TestCase):
    """By their numbers in the specification."""

    def check(
        self, network: Network, name: str, host_header: str, certificate: str, *places: HostPort
    ) -> None:
        self.assertEqual(network.route(name), ServerRoute(host_header, certificate, places))

    def test_1_an_address(self) -> None:
        for name, host, port in (
            ("192.0.2.1", "192.0.2.1", 8448),
            ("192.0.2.1:80", "192.0.2.1", 80),
            ("[2001:db8::1]", "2001:db8::1", 8448),
            ("[2001:db8::1]:80", "2001:db8::1", 80),
        ):
            network = Network()
            self.check(network, name, name, host, HostPort(host, port))
            self.assertEqual(network.asked, [])

    def test_2_a_port(self) -> None:
        network = Network({HOST: "other.example"})
        self.check(network, f"{HOST}:80", f"{HOST}:80", HOST, HostPort(HOST, 80))
        self.assertEqual(network.asked, [])

    def test_3_1_delegation_to_an_address(self) -> None:
        network = Network({HOST: "192.0.2.1"})
        self.check(network, HOST, "192.0.2.1", "192.0.2.1", HostPort("192.0.2.1", 8448))
        network = Network({HOST: "[2001:db8::1]:80"})
        self.check(network, HOST, "[2001:db8::1]:80", "2001:db8::1", HostPort("2001:db8::1", 80))

    def test_3_2_delegation_to_a_port(self) -> None:
        network = Network({HOST: "b.example:80", "b.example": "c.example"})
        self.check(network, HOST, "b.example:80", "b.example", HostPort("b.example", 80))
        self.assertEqual(network.asked, [WellKnownNeeded(HOST)])

    def test_3_3_delegation_to_a_service(self) -> None:
        record = ServiceRecord(0, 0, "c.example", 81)
        network = Network({HOST: "b.example"}, {"_matrix-fed._tcp.b.example": [record]})
        self.check(network, HOST, "b.example", "b.example", HostPort("c.example", 81))

    def test_3_4_delegation_to_a_service_of_the_deprecated_name(self) -> None:
        record = ServiceRecord(0, 0, "c.example", 81)
        network = Network({HOST: "b.example"}, {"_matrix._tcp.b.example": [record]})
        self.check(network, HOST, "b.example", "b.example", HostPort("c.example", 81))

    def test_3_5_delegation_without_a_service(self) -> None:
        network = Network({HOST: "b.example"})
        self.check(network, HOST, "b.example", "b.example", HostPort("b.example", 8448))
        services = ["_matrix-fed._tcp.b.example", "_matrix._tcp.b.example"]
        self.assertEqual(network.asked, [WellKnownNeeded(HOST), *map(ServiceNeeded, services)])

    def test_4_and_5_a_service(self) -> None:
        for service in ("_matrix-fed._tcp", "_matrix._tcp"):
            records = [ServiceRecord(1, 0, "d.example.", 82), ServiceRecord(0, 0, "c.example", 81)]
            network = Network({}, {f"{service}.{HOST}": records})
            places = HostPort("c.example", 81), HostPort("d.example", 82)
            self.check(network, HOST, HOST, HOST, *places)

    def test_6_nothing_but_a_name(self) -> None:
        self.check(Network(), HOST, HOST, HOST, HostPort(HOST, 8448))

    def test_refuses_a_service_that_is_not_available(self) -> None:
        records = [ServiceRecord(0, 0, ".", 0)]
        network = Network({}, {f"_matrix-fed._tcp.{HOST}": records})
        self.assertRaises(NoSuchService, network.route, HOST)

    def test_uses_some_of_very_many_records(self) -> None:
        records = [ServiceRecord(0, 0, f"h{number}.example", 80) for number in range(5000)]
        network = Network({}, {f"_matrix-fed._tcp.{HOST}": records})
        self.assertEqual(len(network.route(HOST).places), MAX_RECORDS)

    def test_refuses_names_of_no_server(self) -> None:
        for name in (
            "",
            ":80",
            "a.example:",
            "a.example:0",
            "a.example:65536",
            "a.example:port",
            "a b",
            "a..example",
            ".a.example",
            "a.example.",
            "-a.example",
            "a_b.example",
            "a/b",
            "a@b.example",
            "ä.example",
            "256.0.0.1",
            "127.1",
            "2130706433",
            "0x7f000001",
            "a.0x7f",
            "1.2.3.04",
            "[::1",
            "::1",
            "[::1]x",
            "[::g]",
            "[fe80::1%eth0]",
            "[127.0.0.1]",
            "a" * 64 + ".example",
            ".".join(["a" * 60] * 5),
        ):
            with self.subTest(name):
                self.assertRaises(UnusableServerName, Network().route, name)

    @given(st.text(st.sampled_from("a1.:[]-f8%@ ")))
    def test_every_name_that_can_be_reached_may_occur_in_rooms(self, name: str) -> None:
        try:
            address = parse_server_name(name)
        except UnusableServerName:
            return
        check_server_name(name)
        self.assertEqual(parse_server_name(address.text), address)


class OrdersRecords(TestCase):
    def test_by_priority(self) -> None:
        records = [ServiceRecord(priority, 0, str(priority), 1) for priority in (3, 1, 2)]
        ordered = order_records(records, Random(1).random)
        self.assertEqual([record.priority for record in ordered], [1, 2, 3])

    def test_at_random_by_weight(self) -> None:
        records = [ServiceRecord(0, weight, str(weight), 1) for weight in (0, 10, 30, 60)]
        random = Random(2).random
        firsts: Counter[int] = Counter()
        for _ in range(2000):
            ordered = order_records(records, random)
            self.assertCountEqual(ordered, records)
            firsts[ordered[0].weight] += 1
        self.assertLess(firsts[0], 40)
        for weight in (10, 30, 60):
            self.assertAlmostEqual(firsts[weight] / 2000, weight / 100, delta=0.05)


class ReadsWellKnownDocuments(TestCase):
    def test_the_name_in_one(self) -> None:
        document = b'{"m.server": "b.example:443", "more": []}'
        self.assertEqual(delegated_name(document, HOST), "b.example:443")

    def test_refuses_others(self) -> None:
        for document in (
            b"",
            b"<html>",
            b"[]",
            b"{}",
            b'{"m.server": 1}',
            b'{"m.server": ""}',
            b'{"m.server": "https://b.example"}',
            b'{"m.server": "b.example/path"}',
            b'{"m.server": "127.1"}',
            b"[" * 10_000,
        ):
            with self.subTest(document[:40]):
                self.assertRaises(BadWellKnown, delegated_name, document, HOST)
