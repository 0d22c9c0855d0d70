"""The make-believe server of the store in memory: whether it is the one that was confirmed."""

from __future__ import annotations

from synrepl.storage.store import NotConfirmed


class MemoryServer:
    """One server after the other.

    :ivar timeline: of the server, which changes with each promotion
    :ivar incarnation: number of the last one that was confirmed
    :ivar confirmed_timeline: its timeline
    """

    def __init__(self) -> None:
        self.timeline = self.confirmed_timeline = 1
        self.incarnation = 1

    @property
    def is_confirmed(self) -> bool:
        """Nothing is written before."""
        return self.timeline == self.confirmed_timeline

    def promote(self) -> None:
        """Another server takes over, which may lack facts."""
        self.timeline += 1

    def confirm(self) -> int:
        """Confirm it; by how many timelines it is further than the last one that is known."""
        steps = self.timeline - self.confirmed_timeline
        self.incarnation += steps
        self.confirmed_timeline = self.timeline
        return steps

    def require_confirmed(self) -> None:
        """Refuse what must not happen on a server that is not confirmed.

        :raises NotConfirmed:
        """
        if not self.is_confirmed:
            raise NotConfirmed(reason="the server was promoted")
