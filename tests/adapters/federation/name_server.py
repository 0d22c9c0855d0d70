"""A DNS server on loopback with records of a test."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.names import client, dns
from twisted.names.error import DomainError
from twisted.names.server import DNSServerFactory

from synrepl.federation.discovery import ServiceRecord
from tests.adapters.raw_http_client import reactor

TTL = 60


class NameServer:
    """Serves records of a test over UDP and TCP, and has a hosts file for it.

    :ivar hosts: addresses by name, as in a hosts file
    :ivar addresses_of: addresses by name, in the DNS
    :ivar services: SRV records by name
    :ivar broken: names for which an error is answered
    :ivar silent: names for which nothing is answered
    :ivar asked: names that were asked for
    """

    def __init__(self) -> None:
        self.hosts: dict[str, Sequence[str]] = {"localhost": ["127.0.0.1"]}
        self.addresses_of: dict[str, Sequence[str]] = {}
        self.services: dict[str, Sequence[ServiceRecord]] = {}
        self.broken: set[str] = set()
        self.silent: set[str] = set()
        self.asked: list[str] = []
        self._ports: list[Any] = []

    async def start(self) -> None:
        """Listen."""
        factory = DNSServerFactory(clients=[self])
        factory.noisy = False
        udp = reactor.listenUDP(0, dns.DNSDatagramProtocol(factory), interface="127.0.0.1")
        self.port = udp.getHost().port
        self._ports = [udp]

    async def stop(self) -> None:
        """Stop listening."""
        for port in self._ports:
            await port.stopListening()

    def resolver(self, reactor: Any) -> Any:
        """A resolver that asks this server."""
        return client.Resolver(servers=[("127.0.0.1", self.port)], reactor=reactor)

    def addresses(self, name: str) -> Sequence[str]:
        """As a hosts file."""
        return self.hosts.get(name, ())

    def query(self, query: Any, timeout: object = None) -> Deferred[Any]:
        """Answer a query; for Twisted's server."""
        name = query.name.name.decode()
        self.asked.append(name)
        if name in self.silent:
            return Deferred()
        if name in self.broken:
            return fail(RuntimeError("broken"))
        payloads: list[Any] = []
        if query.type == dns.A:
            found = self.addresses_of.get(name, ())
            payloads = [dns.Record_A(each, TTL) for each in found if ":" not in each]
        elif query.type == dns.AAAA:
            found = self.addresses_of.get(name, ())
            payloads = [dns.Record_AAAA(each, TTL) for each in found if ":" in each]
        elif query.type == dns.SRV:
            payloads = [
                dns.Record_SRV(each.priority, each.weight, each.port, each.target, TTL)
                for each in self.services.get(name, ())
            ]
        if not payloads and name not in self.addresses_of:
            return fail(DomainError(name))
        records = [dns.RRHeader(name, each.TYPE, dns.IN, TTL, each) for each in payloads]
        return succeed((records, [], []))
