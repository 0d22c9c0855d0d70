"""Notifies the service manager, by the ``sd_notify`` protocol of systemd.

One datagram per message on the socket named by ``NOTIFY_SOCKET``; see
``sd_notify(3)`` and ``sd_watchdog_enabled(3)``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def notify(state: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send ``READY=1``, ``WATCHDOG=1``, ``STOPPING=1`` or ``STATUS=…``.

    Errors are ignored: a service manager that does not listen is no reason to stop.

    :returns: whether it was sent; False without a service manager
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address[0] == "@":  # the abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.connect(address)
            sender.send(state.encode())
    except OSError:
        return False
    return True


def watchdog_interval(environ: Mapping[str, str] = os.environ) -> float | None:
    """Interval of ``WATCHDOG=1`` in seconds, half of the watchdog timeout; None without a watchdog."""
    wanted, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not wanted.isdigit() or int(wanted) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(wanted) / 2_000_000
