"""The report of an examination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from synrepl.tools.doctor.finding import Finding, Severity


@dataclass(frozen=True, slots=True)
class StreamLine:
    """The line of one stream.

    :ivar last: the last token of its sequence; None if it has no sequence
    :ivar highest: the largest token in its tables
    :ivar linear: the recorded linear position; None if there is none
    :ivar writers: positions by writer
    :ivar trimmed: the token up to which facts were trimmed
    :ivar kept_for: the follower with a lease that is furthest behind
    :ivar held_by: the writer with the oldest open reservation or transaction, and its session
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
    """The line of one named follower.

    :ivar behind: its lag in tokens, in the stream in which it is furthest behind
    :ivar lease_s: seconds until its lease ends; None without a lease
    :ivar seen_s: seconds since the last heartbeat of its process; None if there was none
    """

    behind: int
    lease_s: float | None
    seen_s: float | None

    def to_json(self) -> dict[str, Any]:
        """``{"behind", "lease_s", "seen_s"}``."""
        return {"behind": self.behind, "lease_s": self.lease_s, "seen_s": self.seen_s}


@dataclass(frozen=True, slots=True)
class ExaminationReport:
    """The findings, and a line per stream and follower.

    :ivar whose: the kind of database, for a person
    :ivar done: the repairs that were made before
    """

    whose: str
    streams: Mapping[str, StreamLine]
    findings: tuple[Finding, ...]
    followers: Mapping[str, FollowerLine] = field(default_factory=dict)
    done: tuple[str, ...] = ()

    @property
    def has_problems(self) -> bool:
        """Whether there is an error or a warning."""
        return any(finding.is_problem for finding in self.findings)

    @property
    def is_complete(self) -> bool:
        """Whether everything could be examined."""
        return not any(finding.severity is Severity.UNSEEN for finding in self.findings)

    @property
    def is_healthy(self) -> bool:
        """Whether everything could be examined, and there is no problem."""
        return self.is_complete and not self.has_problems

    def to_json(self) -> dict[str, Any]:
        """``{"whose", "healthy", "complete", "done", "findings", "streams", "followers"}``."""
        return {
            "whose": self.whose,
            "healthy": self.is_healthy,
            "complete": self.is_complete,
            "done": list(self.done),
            "findings": [finding.to_json() for finding in self.findings],
            "streams": {name: line.to_json() for name, line in self.streams.items()},
            "followers": {name: line.to_json() for name, line in self.followers.items()},
        }
