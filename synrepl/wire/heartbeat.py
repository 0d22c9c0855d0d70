"""Decides when to send a PING and when a silent peer times out.

Source: "TCP replication, Synapse 1.43", 'Keep alives': each side sends something
about every 5 s, and a peer that is silent for 15 s times out, but only after its
first PING, because a person with netcat sends none. A peer that sends no line at
all in the first minute times out, too.
"""

from __future__ import annotations

from enum import Enum

PING_INTERVAL = 5.0
PING_TIMEOUT = 15.0
FIRST_LINE_TIMEOUT = 60.0


class HeartbeatAction(Enum):
    """The action that is due."""

    NOTHING = "nothing"
    PING = "ping"
    GIVE_UP = "give up"
    NEVER_SPOKE = "never spoke"


class Heartbeat:
    """Tracks when something was last sent and received. All times are in seconds.

    :param interval: a PING is due after this time without sending
    :param timeout: the peer times out after this time without a command
    :param first_line: the peer times out after this time without its first line
    """

    def __init__(
        self,
        now: float,
        interval: float = PING_INTERVAL,
        timeout: float = PING_TIMEOUT,
        first_line: float = FIRST_LINE_TIMEOUT,
    ) -> None:
        self._interval = interval
        self._timeout = timeout
        self._first_line = first_line
        self._sent = now
        self._last_received = now
        self.armed = False
        self.has_received_line = False

    def sent(self, now: float) -> None:
        """Note that something was sent."""
        self._sent = now

    def received(self, now: float) -> None:
        """Note that a valid command was received."""
        self._last_received = now

    def line_received(self) -> None:
        """Note that the peer sent a line."""
        self.has_received_line = True

    def arm(self) -> None:
        """Arm the time-out: the peer sent a PING, so it will keep sending."""
        self.armed = True

    @property
    def due(self) -> float:
        """Time of the next :meth:`check`: when something is due, at most an interval from now."""
        due = self._sent + self._interval
        if self.armed:
            due = min(due, self._last_received + self._timeout)
        return due if self.has_received_line else min(due, self._last_received + self._first_line)

    def check(self, now: float) -> HeartbeatAction:
        """The action that is due now. Checking too early does no harm."""
        # A wall clock may be set back; nothing was sent or received in the future.
        self._sent = min(self._sent, now)
        self._last_received = min(self._last_received, now)
        if self.armed and now >= self._last_received + self._timeout:
            return HeartbeatAction.GIVE_UP
        if not self.has_received_line and now >= self._last_received + self._first_line:
            return HeartbeatAction.NEVER_SPOKE
        return (
            HeartbeatAction.PING if now >= self._sent + self._interval else HeartbeatAction.NOTHING
        )
