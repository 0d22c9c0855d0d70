"""Which addresses may be connected to: public ones, and those that the configuration allows.

A server chooses its name, its DNS records and its ``.well-known`` document, so all of them may lead into the network of
this machine. Addresses are checked after every name has been resolved, and are then connected to as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

#: Addresses of IPv4 hosts for those that have IPv6 only (RFC 6052).
_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")

#: Addresses that protocols use among neighbours; the standard library takes some of them for global.
_PROTOCOL = IPv4Network("192.0.0.0/24")


class AddressPolicy:
    """Says which addresses may be connected to.

    :param allowed: networks that may be connected to although they are not public, such as ``127.0.0.0/8``
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed: Sequence[Network] = [ip_network(network) for network in allowed]

    def allows(self, text: str) -> bool:
        """Whether an address may be connected to.

        :raises ValueError: it is no address
        """
        address = ip_address(text)
        embedded = _embedded(address)
        if any(self._is_in(each, self._allowed) for each in (address, *embedded)):
            return True
        if isinstance(address, IPv6Address) and (address.ipv4_mapped or address in _NAT64):
            return all(map(_is_public, embedded))
        return all(map(_is_public, (address, *embedded)))

    @staticmethod
    def _is_in(address: Address, networks: Iterable[Network]) -> bool:
        return any(address in network for network in networks)


def _is_public(address: Address) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_unspecified
        and address not in _PROTOCOL
    )


def _embedded(address: Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that an IPv6 address leads to."""
    if isinstance(address, IPv4Address):
        return ()
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64 or address in _COMPATIBLE:
        found.append(IPv4Address(int(address) & 0xFFFF_FFFF))
    return tuple(each for each in found if each is not None)
