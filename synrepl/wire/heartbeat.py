"""When to ping, and when to give a silent peer up.

Seeds: "TCP replication, Synapse 1.43", 'Keep alives': each side says something
every 5 s or so; a peer silent for 15 s is given up, but only one that has ever
sent a PING, for a person with netcat sends none. One that has not sent a single
line for a minute after it connected is given up, too: nobody types that slowly.
"""

from __future__ import annotations

from enum import Enum

PING_INTERVAL = 5.0
PING_TIMEOUT = 15.0
FIRST_LINE_TIMEOUT = 60.0


class HeartbeatAction(Enum):
    """What is due."""

    NOTHING = "nothing"
    PING = "ping"
    GIVE_UP = "give up"
    NEVER_SPOKE = "never spoke"


class Heartbeat:
    """Remembers when something was last sent and heard. All times are in seconds.

    :param interval: a PING is due after so long without sending
    :param timeout: the peer is given up after so long without hearing it
    :param first_line: likewise, before its first line
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
        self._heard = now
        self.armed = False
        self.spoken = False

    def sent(self, now: float) -> None:
        """Something has been sent."""
        self._sent = now

    def heard(self, now: float) -> None:
        """A valid command has arrived."""
        self._heard = now

    def spoke(self) -> None:
        """The peer has sent a line."""
        self.spoken = True

    def arm(self) -> None:
        """The peer has sent a PING, so it will go on saying something."""
        self.armed = True

    @property
    def due(self) -> float:
        """When to look again: never before anything is due, at most an interval from now."""
        due = self._sent + self._interval
        if self.armed:
            due = min(due, self._heard + self._timeout)
        return due if self.spoken else min(due, self._heard + self._first_line)

    def look(self, now: float) -> HeartbeatAction:
        """What is due now. Looking too early does no harm."""
        # A wall clock may be set back; nothing was sent or heard in the future.
        self._sent = min(self._sent, now)
        self._heard = min(self._heard, now)
        if self.armed and now >= self._heard + self._timeout:
            return HeartbeatAction.GIVE_UP
        if not self.spoken and now >= self._heard + self._first_line:
            return HeartbeatAction.NEVER_SPOKE
        return (
            HeartbeatAction.PING if now >= self._sent + self._interval else HeartbeatAction.NOTHING
        )
