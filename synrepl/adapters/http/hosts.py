"""Refuses requests for other hosts, and requests made by pages of other sites.

A browser sends the host name of the URL as ``Host``. A page whose name has been made
to resolve to this machine (DNS rebinding) is recognised by it: the name is neither
configured nor an address of this machine. Addresses need no configuration, because a
page cannot have an address of this machine as its name. Requests that pages of other
sites send to this listener's own name are recognised by ``Origin`` and ``Sec-Fetch-Site``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from twisted.web.http_headers import Headers

from synrepl.adapters.http.messages import BadHeader, one_header
from synrepl.core.errors import Refused

#: A name or an address with an optional port, as in a URL.
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d{0,5})?")


class WrongHost(Refused):
    """this listener does not answer to the name {host!r}; ask by its address, or list the name under 'allowed_hosts' of 'http' in its configuration"""


class CrossSite(Refused):
    """a page of another site ({origin}) may not send this"""


class HostNames:
    """The names that a listener answers to, besides loopback names and addresses.

    :param names: configured names, without ports
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(name.lower() for name in names) | {"localhost"}

    def check(self, headers: Headers, version: bytes, local_address: str) -> None:
        """Refuse a request for another host.

        HTTP/1.0 requests may lack ``Host``, because browsers do not send them.

        :param local_address: the address that the request was sent to
        :raises BadHeader: ``Host`` is missing, repeated or malformed
        :raises WrongHost: it names another host
        """
        value = one_header(headers, "Host")
        if value is None:
            if version == b"HTTP/1.0":
                return
            raise BadHeader(name="Host", reason="it is missing")
        match = _HOST.fullmatch(value)
        if match is None:
            raise BadHeader(name="Host", reason="it is not a host name or address")
        host = (match["v6"] or match["name"]).lower().removesuffix(".")
        if host not in self._names and not _is_local(host, local_address):
            raise WrongHost(host=host[:100])


def check_origin(headers: Headers, writes: bool) -> None:
    """Refuse a request that a page of another site makes a browser send.

    :param writes: the request changes something; otherwise links from other sites are allowed
    :raises CrossSite: :raises BadHeader: a header is repeated or malformed
    """
    origin, host = one_header(headers, "Origin"), one_header(headers, "Host")
    elsewhere = origin is not None and origin.lower().partition("://")[2] != (host or "").lower()
    site = one_header(headers, "Sec-Fetch-Site") or "none"
    follows_link = one_header(headers, "Sec-Fetch-Mode") == "navigate" and not writes
    if (writes and elsewhere) or (site not in ("same-origin", "none") and not follows_link):
        raise CrossSite(origin=(origin or site)[:100])


def _is_local(host: str, local_address: str) -> bool:
    """Whether ``host`` is a loopback address, or the address that the request was sent to."""
    try:
        found = _plain(host)
        return found.is_loopback or found == _plain(local_address.partition("%")[0])
    except ValueError:
        return False


def _plain(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address; an IPv4-mapped IPv6 address becomes the IPv4 address.

    :raises ValueError: it is not an address
    """
    found = ipaddress.ip_address(text)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found
