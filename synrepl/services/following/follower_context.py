"""State shared by the lanes of a follower: inbox items, collaborators and counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from synrepl.core.clock import Scheduler
from synrepl.core.log import Logger
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.possible_tokens import PossibleTokens
from synrepl.services.sources import FactSource
from synrepl.wire.batching import RowBatch
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command, Position


class ConnectionEvent(Enum):
    """A change of the connection, queued in an inbox between the rows before and after it."""

    LOST = "lost"
    #: Subscribe at a legacy server, from the position that the lane has reached by then.
    SUBSCRIBE = "subscribe"


#: What a lane processes.
Item = RowBatch | Position | ConnectionEvent


@dataclass(slots=True)
class FollowerCounts:
    """Counters of a follower, by stream."""

    rows: dict[str, int] = field(default_factory=dict)
    duplicates: dict[str, int] = field(default_factory=dict)
    gaps: dict[str, int] = field(default_factory=dict)
    fetched_rows: dict[str, int] = field(default_factory=dict)
    bad_rows: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    resets: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FollowerContext:
    """Collaborators of all lanes of a follower.

    :ivar tokens: knows which tokens can have been given out
    :ivar consumed: called with the number of rows that have left an inbox
    :ivar send: sends a command to the master, if there is a connection
    :ivar close: closes the connection, if there is one
    :ivar page_rows: rows fetched or delivered at a time
    """

    scheduler: Scheduler
    source: FactSource
    delivery: Delivery
    log: Logger
    counts: FollowerCounts
    tokens: PossibleTokens
    consumed: Callable[[int], None]
    send: Callable[[Command], None]
    close: Callable[[CloseReason, str], None]
    page_rows: int


def tally(counts: dict[str, int], name: str, by: int = 1) -> int:
    """Add to a counter and return its new value."""
    counts[name] = counts.get(name, 0) + by
    return counts[name]
