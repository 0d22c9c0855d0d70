"""Looks up names in the DNS, without threads: however slowly one name is answered, others do not wait for it."""

# mypy: disable-error-code="no-untyped-call"
# (the resolvers of Twisted have no types)

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Protocol

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.names import client, dns, hosts
from twisted.names.error import DNSNameError, DomainError
from twisted.python.filepath import FilePath

from synrepl.core.errors import Unavailable
from synrepl.federation.discovery import MAX_RECORDS, ServiceRecord

#: Seconds to wait for an answer, before the question is repeated twice and given up.
TIMEOUTS_S = (1, 2, 4)

#: Maximum number of addresses of a host that are used.
MAX_ADDRESSES = 10

#: Seconds after which the system's configuration is read again if it has changed.
CONFIGURATION_S = 60.0


class NameNotFound(Unavailable):
    """the DNS has no address of {name}"""


class NamesUnavailable(Unavailable):
    """the DNS did not answer what {name} is: {reason}"""


class DnsResolver(Protocol):
    """Twisted's ``IResolver``, as far as it is used."""

    def lookupAddress(self, name: str, timeout: Sequence[int]) -> Deferred[Any]: ...

    def lookupIPV6Address(self, name: str, timeout: Sequence[int]) -> Deferred[Any]: ...

    def lookupService(self, name: str, timeout: Sequence[int]) -> Deferred[Any]: ...


class HostsFile(Protocol):
    """The addresses that a machine's administrator gives names."""

    def addresses(self, name: str) -> Sequence[str]: ...


class SystemHosts:
    """The hosts file of this machine.

    :param path: of the file
    """

    def __init__(self, path: str = "/etc/hosts") -> None:
        self._path = path

    def addresses(self, name: str) -> Sequence[str]:
        """The addresses of a name in the file, which is read each time."""
        return list(hosts.searchFileForAll(FilePath(self._path), name.encode("ascii")))


class SystemResolver:
    """Asks the name servers of this machine's configuration; see :class:`DnsResolver`.

    :param path: of the configuration
    """

    def __init__(self, reactor: Any, path: str = "/etc/resolv.conf") -> None:
        self._reactor = reactor
        self._path = path
        self._servers: Sequence[tuple[str, int]] = ()
        self._resolver: Any = None
        self._read_at = 0.0

    def lookupAddress(self, name: str, timeout: Sequence[int]) -> Deferred[Any]:
        """A records."""
        return self._current().lookupAddress(name, timeout)  # type: ignore[no-any-return]

    def lookupIPV6Address(self, name: str, timeout: Sequence[int]) -> Deferred[Any]:
        """AAAA records."""
        return self._current().lookupIPV6Address(name, timeout)  # type: ignore[no-any-return]

    def lookupService(self, name: str, timeout: Sequence[int]) -> Deferred[Any]:
        """SRV records."""
        return self._current().lookupService(name, timeout)  # type: ignore[no-any-return]

    def _current(self) -> Any:
        now = self._reactor.seconds()
        if self._resolver is None or now > self._read_at + CONFIGURATION_S:
            self._read_at = now
            servers = _name_servers(self._path)
            if self._resolver is None or servers != self._servers:
                self._servers = servers
                self._resolver = client.Resolver(servers=list(servers), reactor=self._reactor)
        return self._resolver


def _name_servers(path: str) -> Sequence[tuple[str, int]]:
    """The name servers of a ``resolv.conf``; as for the system's own resolver, that of this machine without any."""
    found: list[tuple[str, int]] = []
    with suppress(OSError):
        for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.split()
            if len(words) > 1 and words[0] == "nameserver":
                with suppress(ValueError):
                    found.append((str(ip_address(words[1].partition("%")[0])), dns.PORT))
    return found or [("127.0.0.1", dns.PORT)]


class NameResolver:
    """Looks up the addresses of hosts, and SRV records.

    :param resolver: asks the DNS
    :param hosts_file: has precedence over it
    """

    def __init__(self, resolver: DnsResolver, hosts_file: HostsFile) -> None:
        self._resolver = resolver
        self._hosts_file = hosts_file

    async def addresses(self, host: str) -> Sequence[str]:
        """The addresses of a host, those of IPv6 first; of an address, itself.

        :raises NameNotFound: :raises NamesUnavailable:
        """
        with suppress(ValueError):
            return [str(ip_address(host))]
        found = list(self._hosts_file.addresses(host))
        if not found:
            found = await self._ask_addresses(host)
        if not found:
            raise NameNotFound(name=host)
        return found[:MAX_ADDRESSES]

    async def services(self, service: str) -> Sequence[ServiceRecord]:
        """SRV records; none if there are none.

        :raises NamesUnavailable:
        """
        try:
            answers, _, _ = await self._resolver.lookupService(service, TIMEOUTS_S)
        except DNSNameError:
            return ()
        except Exception as error:  # the resolver raises errors of several libraries
            raise _unavailable(service, error) from None
        records = [
            ServiceRecord(
                answer.payload.priority,
                answer.payload.weight,
                answer.payload.target.name.decode("ascii", "replace") or ".",
                answer.payload.port,
            )
            for answer in answers
            if answer.type == dns.SRV
        ]
        return records[:MAX_RECORDS]

    async def _ask_addresses(self, host: str) -> list[str]:
        lookups = [
            self._resolver.lookupIPV6Address(host, TIMEOUTS_S),
            self._resolver.lookupAddress(host, TIMEOUTS_S),
        ]
        outcomes: Any = await DeferredList(lookups, consumeErrors=True)
        found: list[str] = []
        errors = []
        for was_answered, outcome in outcomes:
            if was_answered:
                found += _addresses_in(outcome[0])
            elif not outcome.check(DNSNameError):
                errors.append(outcome.value)
        if not found and errors:
            raise _unavailable(host, errors[0])
        return found


def _addresses_in(answers: Sequence[Any]) -> list[str]:
    found: list[str] = []
    for answer in answers:
        if answer.type == dns.A:
            found.append(str(IPv4Address(answer.payload.address)))
        elif answer.type == dns.AAAA:
            found.append(str(IPv6Address(answer.payload.address)))
    return found


def _unavailable(name: str, error: Exception) -> NamesUnavailable:
    if isinstance(error, DeferredTimeout):
        reason = "no name server answered in time"
    elif isinstance(error, DomainError):
        reason = f"a name server answered with an error ({type(error).__name__})"
    else:
        reason = type(error).__name__
    return NamesUnavailable(name=name, reason=reason)
