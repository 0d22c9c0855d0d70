"""Names of servers, as far as they say where a server is.

The grammar of names that may occur in rooms is wider (:func:`synrepl.rooms.check_server_name`): a name there may be of
a server that never existed. Here a name must lead somewhere.

Source: https://spec.matrix.org/v1.16/appendices/#server-name
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import NamedTuple

from synrepl.core.errors import InputError

_NAME = re.compile(
    r"(?P<host>\[[^\[\]]{2,45}\]|[^:\[\]]{1,255})(?::(?P<port>[0-9]{1,5}))?", re.ASCII
)
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)
_IPV4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}", re.ASCII)
_MAX_HOST = 253


class UnusableServerName(InputError):
    """{name!r} does not name a server that could be reached: {reason}"""


class HostPort(NamedTuple):
    """Where to connect to.

    :ivar host: a host name, or an address without brackets
    """

    host: str
    port: int


class ServerAddress(NamedTuple):
    """A server name in parts.

    :ivar host: a host name, or an address without brackets
    :ivar port: None where the name has none
    :ivar is_literal: ``host`` is an address
    """

    host: str
    port: int | None
    is_literal: bool

    @property
    def text(self) -> str:
        """As in a ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def parse_server_name(name: str) -> ServerAddress:
    """Take a server name apart.

    :raises UnusableServerName: it is malformed, or an address or port that cannot exist
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise _unusable(name, "it is no host name or address with an optional port")
    host, port = match["host"], None if match["port"] is None else int(match["port"])
    if port is not None and not 1 <= port <= 65_535:
        raise _unusable(name, "its port is not between 1 and 65535")
    try:
        if host.startswith("["):
            return ServerAddress(str(IPv6Address(_without_zone(host[1:-1]))), port, True)
        if _IPV4.fullmatch(host):
            return ServerAddress(str(IPv4Address(host)), port, True)
    except AddressValueError as error:
        raise _unusable(name, str(error)) from None
    labels = host.split(".")
    if len(host) > _MAX_HOST or not all(map(_LABEL.fullmatch, labels)):
        raise _unusable(name, "it is no host name")
    # What C libraries read as an address (127.1, 2130706433, 0x7f000001) is no name.
    if labels[-1].isdigit() or labels[-1].lower().startswith("0x"):
        raise _unusable(name, "the last part of a host name is no number")
    return ServerAddress(host, port, False)


def _without_zone(text: str) -> str:
    if "%" in text:
        raise AddressValueError("an interface is named in it")
    return text


def _unusable(name: str, reason: str) -> UnusableServerName:
    return UnusableServerName(name=name[:300], reason=reason[:200])
