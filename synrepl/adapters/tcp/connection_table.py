"""Limits the connections of a listener, in total and per address.

When a limit is reached, a new connection displaces the one that has been idle
longest: a client that has sent nothing, or an incomplete request. So clients that
merely hold connections open only displace one another.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

#: Maximum number of displaced connections that are still closing. Beyond it, new connections
#: are dropped.
MAX_LEAVING = 64

#: Network prefix of an IPv6 customer, who has all addresses in it.
_IPV6_PREFIX = 64


class Displaceable(Protocol):
    """A connection that can be closed to make room for another."""

    def displace(self) -> None:
        """Close it to make room for another connection."""


C = TypeVar("C", bound=Displaceable)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Maximum numbers of connections of a listener.

    :ivar total: from all addresses
    :ivar of_address: from one address; all addresses of an IPv6 /64 count as one
    """

    total: int = 1_000
    of_address: int = 500


class ConnectionTable(Generic[C]):
    """Tracks connections, and which of them are idle.

    :ivar displaced: number of connections displaced so far
    :ivar refused: number of connections refused so far
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._addresses: dict[C, str] = {}
        self._counts: Counter[str] = Counter()
        #: Idle connections by address, longest idle first.
        self._idle: dict[str, dict[C, None]] = {}
        self._idlers = 0
        self._leaving: set[C] = set()
        self.displaced = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._addresses)

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._addresses))

    @property
    def busy(self) -> int:
        """Number of connections that are neither idle nor closing."""
        return len(self._addresses) - len(self._leaving) - self._idlers

    def make_room(self, address: str) -> bool:
        """Make room for a new connection, displacing one if necessary; False if impossible."""
        victim: C | None = None
        if len(self._leaving) >= MAX_LEAVING:
            self.refused += 1
            return False
        if self._counts[address] >= self.limits.of_address:
            victim = next(iter(self._idle.get(address, ())), None)
        elif len(self._addresses) - len(self._leaving) >= self.limits.total:
            most = max(self._idle.values(), key=len, default=None)
            victim = None if most is None else next(iter(most))
        else:
            return True
        if victim is None:
            self.refused += 1
            return False
        self.displaced += 1
        self.leaving(victim)
        victim.displace()
        return True

    def enter(self, connection: C, address: str) -> None:
        """Add a connection, as idle."""
        self._addresses[connection] = address
        self._counts[address] += 1
        self.idle(connection)

    def idle(self, connection: C) -> None:
        """Mark it as idle: it may be displaced, after those that have been idle longer."""
        if connection in self._addresses and connection not in self._leaving:
            self.active(connection)
            self._idle.setdefault(self._addresses[connection], {})[connection] = None
            self._idlers += 1

    def active(self, connection: C) -> None:
        """Mark it as active: it is not displaced."""
        address = self._addresses.get(connection)
        idle = None if address is None else self._idle.get(address)
        if address is not None and idle is not None and connection in idle:
            del idle[connection]
            self._idlers -= 1
            if not idle:
                del self._idle[address]

    def leaving(self, connection: C) -> None:
        """Mark it as closing: it no longer counts towards the limits."""
        if connection in self._addresses and connection not in self._leaving:
            self.active(connection)
            self._leaving.add(connection)
            self._free(self._addresses[connection])

    def left(self, connection: C) -> None:
        """Remove a closed connection."""
        if connection in self._addresses:
            self.active(connection)
            address = self._addresses.pop(connection)
            if connection in self._leaving:
                self._leaving.discard(connection)
            else:
                self._free(address)

    def _free(self, address: str) -> None:
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]


def address_of(address: object) -> str:
    """The key of an address in the table: the address, or the /64 of an IPv6 address.

    :param address: as Twisted passes it to ``buildProtocol``
    """
    host = str(getattr(address, "host", ""))
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _IPV6_PREFIX), strict=False))
