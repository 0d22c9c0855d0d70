"""What the lanes of a follower share: collaborators and counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from synrepl.core.clock import Scheduler
from synrepl.core.log import Logger
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.possible_tokens import PossibleTokens
from synrepl.services.following.sources import FactSource
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command


@dataclass(slots=True)
class FollowerCounts:
    """What a follower has met, by stream."""

    rows: dict[str, int] = field(default_factory=dict)
    duplicates: dict[str, int] = field(default_factory=dict)
    gaps: dict[str, int] = field(default_factory=dict)
    fetched_rows: dict[str, int] = field(default_factory=dict)
    bad_rows: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    resets: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FollowerContext:
    """What all lanes of a follower work with.

    :ivar tokens: which tokens can have been given out
    :ivar consumed: told how many rows no longer wait
    :ivar send: sends a command to the master, if there is a connection
    :ivar close: closes the connection, if there is one
    :ivar page_rows: rows fetched, or handed over, at a time
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
    """Add to a count; the new value."""
    counts[name] = counts.get(name, 0) + by
    return counts[name]
