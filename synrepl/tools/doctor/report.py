"""The report of an examination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from synrepl.tools.doctor.finding import Finding, Severity


@dataclass(frozen=True, slots=True)
class StreamLine:
    """One stream, in a line.

    :ivar last: the last token its sequence gave out; None where it has no sequence
    :ivar highest: the largest token in its tables
    :ivar linear: the linear position on record; None where there is none
    :ivar writers: by writer, its position
    :ivar trimmed: facts up to here are gone
    :ivar kept_for: the follower with a lease that is furthest behind
    :ivar held_by: the writer with the oldest open reservation or transaction, and that
    """

    last: int | None
    highest: int
    linear: int | None
    writers: Mapping[str, int]
    trimmed: int | None = None
    kept_for: str | None = None
    held_by: str | None = None

    def to_json(self) -> dict[str, Any]:
        """``{"last", "highest", "linear", "writers", "trimmed", "kept_for", "held_by"}``."""
        return {
            "last": self.last,
            "highest": self.highest,
            "linear": self.linear,
            "writers": dict(self.writers),
            "trimmed": self.trimmed,
            "kept_for": self.kept_for,
            "held_by": self.held_by,
        }


@dataclass(frozen=True, slots=True)
class FollowerLine:
    """One named follower, in a line.

    :ivar behind: tokens, in the stream in which it is furthest behind
    :ivar lease_s: how many seconds its lease still has; None without one
    :ivar seen_s: seconds since its process last said that it runs; None where that is not known
    """

    behind: int
    lease_s: float | None
    seen_s: float | None

    def to_json(self) -> dict[str, Any]:
        """``{"behind", "lease_s", "seen_s"}``."""
        return {"behind": self.behind, "lease_s": self.lease_s, "seen_s": self.seen_s}


@dataclass(frozen=True, slots=True)
class ExaminationReport:
    """What was found.

    :ivar whose: what the database is, for a person
    :ivar done: what was cured before that
    """

    whose: str
    streams: Mapping[str, StreamLine]
    findings: tuple[Finding, ...]
    followers: Mapping[str, FollowerLine] = field(default_factory=dict)
    done: tuple[str, ...] = ()

    @property
    def wrong(self) -> bool:
        """There is something worse than a note."""
        return any(finding.wrong for finding in self.findings)

    @property
    def complete(self) -> bool:
        """Everything could be looked at."""
        return not any(finding.severity is Severity.UNSEEN for finding in self.findings)

    @property
    def healthy(self) -> bool:
        """Everything could be looked at, and nothing is wrong."""
        return self.complete and not self.wrong

    def to_json(self) -> dict[str, Any]:
        """``{"whose", "healthy", "complete", "done", "findings", "streams", "followers"}``."""
        return {
            "whose": self.whose,
            "healthy": self.healthy,
            "complete": self.complete,
            "done": list(self.done),
            "findings": [finding.to_json() for finding in self.findings],
            "streams": {name: line.to_json() for name, line in self.streams.items()},
            "followers": {name: line.to_json() for name, line in self.followers.items()},
        }
