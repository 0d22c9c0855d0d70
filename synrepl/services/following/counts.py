"""What a follower counts."""

from __future__ import annotations

from dataclasses import dataclass, field


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


def tally(counts: dict[str, int], name: str, by: int = 1) -> int:
    """Add to a count; the new value."""
    counts[name] = counts.get(name, 0) + by
    return counts[name]
