"""When to ping, and when to give a silent peer up.

Seeds: "TCP replication, Synapse 1.43", 'Keep alives': each side says something
every 5 s or so; a peer silent for 15 s is given up, but only one that has ever
sent a PING, for a person with netcat sends none.
"""

from __future__ import annotations

from enum import Enum

PING_INTERVAL = 5.0
PING_TIMEOUT = 15.0


class Beat(Enum):
    """What is due."""

    NOTHING = "nothing"
    PING = "ping"
    GIVE_UP = "give up"


class Heartbeat:
    """Remembers when something was last sent and heard. All times are in seconds.

    :param interval: a PING is due after so long without sending
    :param timeout: the peer is given up after so long without hearing it
    """

    def __init__(
        self, now: float, interval: float = PING_INTERVAL, timeout: float = PING_TIMEOUT
    ) -> None:
        self._interval = interval
        self._timeout = timeout
        self._sent = now
        self._heard = now
        self.armed = False

    def sent(self, now: float) -> None:
        """Something has been sent."""
        self._sent = now

    def heard(self, now: float) -> None:
        """A valid command has arrived."""
        self._heard = now

    def arm(self) -> None:
        """The peer has sent a PING, so it will go on saying something."""
        self.armed = True

    @property
    def due(self) -> float:
        """When to look again: never before anything is due, at most an interval from now."""
        ping = self._sent + self._interval
        return min(ping, self._heard + self._timeout) if self.armed else ping

    def look(self, now: float) -> Beat:
        """What is due now. Looking too early does no harm."""
        # A wall clock may be set back; nothing was sent or heard in the future.
        self._sent = min(self._sent, now)
        self._heard = min(self._heard, now)
        if self.armed and now >= self._heard + self._timeout:
            return Beat.GIVE_UP
        return Beat.PING if now >= self._sent + self._interval else Beat.NOTHING
