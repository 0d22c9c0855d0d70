"""The loopback interface: what only this machine can reach."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

LOOPBACK = "127.0.0.1"


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach ``address``; a name other than localhost counts as public."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def first_remote_host(hosts: Iterable[str]) -> str | None:
    """The first of some hosts that is another machine; None when all are this one.

    :param hosts: names, addresses, or paths of unix sockets (also abstract ones, "@name")
    """
    for host in hosts:
        if not host.startswith(("/", "@")) and not is_loopback(host):
            return host
    return None
