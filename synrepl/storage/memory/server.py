"""The simulated server of the in-memory store, and its confirmation."""

from __future__ import annotations

from synrepl.storage.store import NotConfirmed


class MemoryServer:
    """The simulated server, through its promotions.

    :ivar timeline: the current timeline, which changes with each promotion
    :ivar incarnation: number of the last confirmed incarnation
    :ivar confirmed_timeline: timeline of that incarnation
    """

    def __init__(self) -> None:
        self.timeline = self.confirmed_timeline = 1
        self.incarnation = 1

    @property
    def is_confirmed(self) -> bool:
        """Whether the current server is confirmed; until then it refuses writes."""
        return self.timeline == self.confirmed_timeline

    def promote(self) -> None:
        """Switch to another server, which may lack facts."""
        self.timeline += 1

    def confirm(self) -> int:
        """Confirm the current server; return the number of timelines since the last confirmed one."""
        steps = self.timeline - self.confirmed_timeline
        self.incarnation += steps
        self.confirmed_timeline = self.timeline
        return steps

    def require_confirmed(self) -> None:
        """Refuse an operation that requires a confirmed server.

        :raises NotConfirmed:
        """
        if not self.is_confirmed:
            raise NotConfirmed(reason="the server was promoted")
