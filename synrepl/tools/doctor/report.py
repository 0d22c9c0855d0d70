"""The report of an examination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How serious a finding is."""

    ERROR = "error"  # facts cannot move, or a process refuses to start
    WARNING = "warning"  # it will become an error, or a follower misses facts that are trimmed
    UNSEEN = "unseen"  # something could not be examined, so nothing is known about it
    NOTE = "note"  # worth knowing


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    :ivar id: the name of its kind, stable across releases
    :ivar what: the observation, for a person
    :ivar where: the stream, or another subject
    :ivar cure: the exact remedy
    :ivar fixable: whether ``--fix`` applies it
    """

    id: str
    severity: Severity
    what: str
    where: str
    cure: str
    fixable: bool = False

    @property
    def is_problem(self) -> bool:
        """Whether it is an error or a warning."""
        return self.severity in (Severity.ERROR, Severity.WARNING)


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
            "findings": [asdict(finding) for finding in self.findings],
            "streams": {name: asdict(line) for name, line in self.streams.items()},
            "followers": {name: asdict(line) for name, line in self.followers.items()},
        }
