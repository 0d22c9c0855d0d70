"""The report of a cache audit: keys and positions, never values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from synrepl.services.status.stream_progress import writer_label
from synrepl.tools.audit.missed_rows import Positions, SearchResult

#: Maximum number of stale entries and errors that are listed; the others are only counted.
MOST_STALE = 100
MOST_ERRORS = 20


class AuditVerdict(StrEnum):
    """The result for one entry."""

    #: The entry equals the freshly loaded value.
    COHERENT = "coherent"
    #: The entry differed, and an invalidation was on its way.
    IN_FLIGHT = "in_flight"
    #: The entry differed, and this process did not catch up in time, so nothing is known.
    BEHIND = "behind"
    #: The value could not be loaded.
    FAILED = "failed"
    #: Two loads of the value also differ from each other, or values cannot be compared.
    INCOMPARABLE = "incomparable"
    #: The entry differed, and no invalidation was on its way.
    STALE = "stale"


#: The verdicts that say whether the entry was correct.
JUDGED = frozenset({AuditVerdict.COHERENT, AuditVerdict.IN_FLIGHT, AuditVerdict.STALE})


@dataclass(frozen=True, slots=True)
class StaleEntry:
    """An entry that no invalidation has reached.

    :ivar held: type and length of the cached value
    :ivar loaded: type and length of the freshly loaded value
    :ivar searched: the search for the row that should have invalidated it; None if the rows could
        not be read
    """

    cache: str
    key: list[Any]
    held: str
    loaded: str
    positions: Positions
    searched: SearchResult | None

    @property
    def expected(self) -> str:
        """A sentence about the missing invalidation."""
        if self.searched is None:
            return "which row should have dropped it is not known, for the rows cannot be read now"
        row, spans, is_complete = self.searched
        if row is not None:
            named = f"row {row.token} of {row.writer!r} in {row.stream!r} names it"
            if row.after_load:
                return f"{named} and was applied, yet the entry stayed"
            return f"{named}; whether the entry was loaded before that is not remembered"
        if not spans:
            return "nothing ever invalidates it, yet what it is loaded from has changed"
        looked = " and ".join(
            f"{stream!r} above {span.after} up to {span.upto}" for stream, span in spans.items()
        )
        if not is_complete:
            return f"no row of {looked} names it; others have been trimmed, or were too many to look at"
        return f"no row of {looked} names it: the change was committed without an invalidation"

    def to_json(self) -> dict[str, Any]:
        """The entry for programs."""
        row, spans, is_complete = self.searched or (None, {}, False)
        return {
            "cache": self.cache,
            "key": self.key,
            "held": self.held,
            "loaded": self.loaded,
            "positions": {
                stream: {writer_label(writer): stood._asdict() for writer, stood in writers.items()}
                for stream, writers in self.positions.items()
            },
            "searched": {stream: list(span) for stream, span in spans.items()},
            "searched_all": is_complete,
            "row": None if row is None else row._asdict(),
            "expected": self.expected,
        }


@dataclass(slots=True)
class AuditReport:
    """The results of one audit.

    :ivar verdicts: number of entries by verdict
    :ivar stale: the first stale entries
    :ivar errors: number of entries that could not be loaded, by cache and type of error
    :ivar left: number of entries that were picked but not audited before the time was up
    """

    verdicts: Counter[AuditVerdict] = field(default_factory=Counter)
    stale: list[StaleEntry] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    left: int = 0

    def count_failure(self, cache: str, error: Exception) -> None:
        """Count a failed load. Only the error's type is kept, because its text may contain values."""
        kind = f"{cache}: {type(error).__name__}"
        if kind in self.errors or len(self.errors) < MOST_ERRORS:
            self.errors[kind] += 1

    def to_json(self) -> dict[str, Any]:
        """The report for programs; ``incoherent`` also counts the stale entries that are not listed."""
        counts = {str(verdict): self.verdicts[verdict] for verdict in AuditVerdict}
        counts["incoherent"] = counts.pop(AuditVerdict.STALE)
        return {
            "checked": self.verdicts.total(),
            **counts,
            "left": self.left,
            "errors": dict(self.errors),
            "stale": [entry.to_json() for entry in self.stale],
        }
