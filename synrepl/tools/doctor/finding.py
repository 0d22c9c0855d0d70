"""A finding about a database, and its severity."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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

    def to_json(self) -> dict[str, object]:
        """``{"id", "severity", "what", "where", "cure", "fixable"}``."""
        return {
            "id": self.id,
            "severity": self.severity.value,
            "what": self.what,
            "where": self.where,
            "cure": self.cure,
            "fixable": self.fixable,
        }
