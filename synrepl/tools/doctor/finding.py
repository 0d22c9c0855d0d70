"""What is wrong, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"  # facts cannot move, or a process refuses to start
    WARNING = "warning"  # it will become one, or somebody loses what is trimmed
    UNSEEN = "unseen"  # something could not be looked at, so nothing is known about it
    NOTE = "note"  # worth knowing


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    :ivar id: a short word for its kind, which stays the same over releases
    :ivar what: what is so, for a person
    :ivar where: the stream, or what else it is about
    :ivar cure: what to do about it, exactly
    :ivar fixable: ``--fix`` does that
    """

    id: str
    severity: Severity
    what: str
    where: str
    cure: str
    fixable: bool = False

    @property
    def wrong(self) -> bool:
        """It is more than a note, and known."""
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
