"""The loopback interface, and whether addresses belong to it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

LOOPBACK = "127.0.0.1"


def is_loopback(address: str) -> bool:
    """Whether ``address`` is on the loopback interface; any name but localhost counts as public."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def first_remote_host(hosts: Iterable[str]) -> str | None:
    """The first host that is another machine; None if there is none.

    :param hosts: names, addresses, or paths of unix sockets (also abstract ones, "@name")
    """
    for host in hosts:
        if not host.startswith(("/", "@")) and not is_loopback(host):
            return host
    return None
