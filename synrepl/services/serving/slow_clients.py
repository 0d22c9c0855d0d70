"""Clients that were disconnected because they did not read: logged, counted and listed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from synrepl.core.clock import Clock
from synrepl.core.log import Logger
from synrepl.wire.closing import FailedToKeepUp

#: Maximum number of listed clients, the latest ones.
MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class SlowClient:
    """A client that was disconnected.

    :ivar lines: number of lines that were queued for it
    :ivar size: their size in bytes
    :ivar waited_s: age of the oldest queued line, in seconds
    :ivar at: when it was disconnected, in seconds by the clock of the process
    """

    name: str
    address: str
    lines: int
    size: int
    waited_s: float
    at: float

    def to_json(self, now: float) -> dict[str, Any]:
        """The values as JSON; the time in seconds before ``now``."""
        return {
            "name": self.name,
            "address": self.address,
            "queued_lines": self.lines,
            "queued_bytes": self.size,
            "waited_s": round(self.waited_s, 3),
            "ago_s": round(max(0.0, now - self.at), 3),
        }


class SlowClients:
    """The clients that were disconnected since the process started.

    :ivar count: their number
    :ivar latest: the latest of them, oldest first
    """

    def __init__(self, clock: Clock, log: Logger) -> None:
        self._clock = clock
        self._log = log
        self.count = 0
        self.latest: deque[SlowClient] = deque(maxlen=MOST_LISTED)

    def cut_off(self, name: str, address: str, fault: FailedToKeepUp) -> None:
        """Record and log a client that is disconnected."""
        facts: dict[str, Any] = dict(fault.facts)
        client = SlowClient(
            name,
            address,
            int(facts["lines"]),
            int(facts["size"]),
            float(facts["seconds"]),
            self._clock.seconds(),
        )
        self.count += 1
        self.latest.append(client)
        self._log.warn(
            "SLOW CLIENT CUT OFF: {name} at {address} does not read: {lines} lines ({size} bytes) wait"
            " for it, the oldest for {waited:.1f} s. It can come back and catch up; if this goes on,"
            " it is too slow for its streams, or hangs",
            name=name,
            address=address,
            lines=client.lines,
            size=client.size,
            waited=client.waited_s,
        )

    def to_json(self) -> dict[str, Any]:
        """``{"count", "latest"}``."""
        now = self._clock.seconds()
        return {"count": self.count, "latest": [client.to_json(now) for client in self.latest]}
