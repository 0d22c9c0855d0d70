"""The loopback interface: what only this machine can reach."""

from __future__ import annotations

import ipaddress

LOOPBACK = "127.0.0.1"


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach ``address``; a name other than localhost counts as public."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
