"""How far the join of a room is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class JoinPhase(StrEnum):
    """What a join is about."""

    WAITING = "waiting"  #: for another join
    ASKING = "asking"  #: a server for the place of the event in the room
    SENDING = "sending"  #: the join
    CHECKING = "checking"  #: the signatures of the room's state
    STORING = "storing"  #: it
    DONE = "done"


@dataclass
class JoinProgress:
    """How far a join is.

    :ivar server: that is asked; empty before the first one
    :ivar tried: number of servers that could not help
    :ivar events: of the answer, that were read
    :ivar began: time, in seconds
    """

    began: float
    phase: JoinPhase = JoinPhase.WAITING
    server: str = ""
    tried: int = 0
    events: int = 0

    def at(self, phase: JoinPhase, server: str) -> None:
        """Go on with another phase."""
        self.phase, self.server = phase, server

    def to_json(self, now: float) -> dict[str, Any]:
        """The progress, as JSON.

        :param now: time, in seconds
        """
        return {
            "phase": self.phase.value,
            "server": self.server,
            "tried": self.tried,
            "events": self.events,
            "seconds": round(max(0.0, now - self.began), 3),
        }
