"""What an import finds wrong: differences from the server, and corruption, each named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Self

import msgspec

from synrepl.rooms import StateKey

#: Findings that a report lists; further ones are counted.
MAX_LISTED = 1000


class FindingKind(StrEnum):
    """What is wrong."""

    NO_JSON = "no JSON"  #: the event has no row with its JSON
    BAD_JSON = "bad JSON"  #: the stored JSON is no event of the room's version
    WRONG_ID = "wrong event ID"  #: the stored JSON is another event, or one of another room
    WRONG_HASH = "wrong content hash"
    BAD_SIGNATURE = "bad signature"
    WRONG_COLUMN = "wrong column"  #: a column differs from the JSON
    WRONG_EDGES = "wrong edges"  #: the table of prev events differs from the JSON
    MISSING_EVENT = "missing event"  #: something depends on an event that is not there
    VERDICT = "verdict"  #: the server accepted what the rules reject, or the reverse
    NO_STATE_GROUP = "no state group"  #: of an event that is no outlier
    STATE = "state"  #: an entry of the state after an event
    GROUP = "state group"  #: an entry of a state group that is the state after no event
    EMPTY_GROUP = "empty state group"  #: without entries, or without the group that it overlays
    OTHER_ROOM = "other room"  #: a state group overlays, or is that of, one of another room
    CURRENT_STATE = "current state"
    EXTREMITY = "forward extremity"  #: another event follows it, or it cannot be one
    REDACTION = "redaction"  #: its recorded target differs from the JSON
    NO_VERSION = "no room version"  #: the room cannot be read
    NOT_STORED = "not stored"  #: the store decided otherwise than the import, or refused it


#: Findings by which the bytes of an event cannot be trusted, so that it is not imported.
CORRUPT = frozenset(
    {
        FindingKind.NO_JSON,
        FindingKind.BAD_JSON,
        FindingKind.WRONG_ID,
        FindingKind.BAD_SIGNATURE,
    }
)


class ImportFinding(msgspec.Struct, frozen=True):
    """One difference or corruption.

    :ivar event_id: the event that it concerns; "" for the whole room or a group
    :ivar group: the server's state group
    :ivar key: type and state key of a state entry
    :ivar column: what differs, if it is no state entry
    :ivar theirs: the server's value
    :ivar ours: the value that follows from the events
    """

    kind: FindingKind
    room_id: str
    event_id: str = ""
    group: int | None = None
    key: StateKey | None = None
    column: str = ""
    theirs: str | None = None
    ours: str | None = None

    def __str__(self) -> str:
        where = [self.room_id]
        if self.event_id:
            where.append(f"event {self.event_id}")
        if self.group is not None:
            where.append(f"state group {self.group}")
        if self.key is not None:
            where.append(f"({self.key[0]}, {self.key[1]!r})")
        if self.column:
            where.append(self.column)
        if self.ours is None and self.key is None:
            values = "" if self.theirs is None else f": {self.theirs}"
        else:
            values = f": the server has {_shown(self.theirs)}, it should be {_shown(self.ours)}"
        return f"{self.kind}: {', '.join(where)}{values}"


class Quarantined(msgspec.Struct, frozen=True):
    """An event that is not imported, and its bytes.

    :ivar raw: the stored JSON; None if there is none
    :ivar reason: why it is not imported
    """

    room_id: str
    event_id: str
    raw: bytes | None
    reason: str


class ImportCounts(msgspec.Struct):
    """Counts of what was read, verified and imported. They can be added.

    :ivar events: events read, including outliers
    :ivar imported: events passed to the store
    :ivar signatures: events whose signatures were verified
    :ivar unverified: events of servers with unknown or expired keys
    :ivar redacted: events that the server keeps only in their redacted form
    :ivar states: states after events that were computed again and compared
    :ivar differing: those that differ from the server's
    :ivar inherited: those of them that differ only as a prev event's does
    :ivar groups: further state groups that were computed again and compared
    :ivar given: events whose prev events are missing, so that the server's state was taken
    :ivar unjudged: events that cannot be judged, because they depend on missing events
    :ivar out_of_band: memberships of rooms that the server has not joined
    :ivar quarantined: events that were not imported
    :ivar findings: by kind, including those that are not listed
    """

    events: int = 0
    imported: int = 0
    outliers: int = 0
    rejected: int = 0
    soft_failed: int = 0
    signatures: int = 0
    unverified: int = 0
    redacted: int = 0
    states: int = 0
    differing: int = 0
    inherited: int = 0
    groups: int = 0
    given: int = 0
    unjudged: int = 0
    out_of_band: int = 0
    quarantined: int = 0
    findings: dict[str, int] = {}

    def add(self, other: ImportCounts) -> None:
        """Add the counts of another batch or room."""
        for name in self.__struct_fields__:
            if name != "findings":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.findings = dict(Counter(self.findings) + Counter(other.findings))

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs and nothing is corrupt."""
        return not self.findings

    @property
    def is_complete(self) -> bool:
        """Whether no event is missing at the source or in quarantine."""
        return not self.quarantined and FindingKind.MISSING_EVENT.value not in self.findings


class ImportReport(msgspec.Struct):
    """The result of an import.

    :ivar rooms: rooms that were imported to their end
    :ivar left_out: rooms that were not imported, with the reason
    :ivar findings: the first ones
    """

    rooms: int = 0
    left_out: dict[str, str] = {}
    counts: ImportCounts = msgspec.field(default_factory=ImportCounts)
    findings: list[ImportFinding] = []

    @classmethod
    def empty(cls) -> Self:
        """A report of nothing."""
        return cls(0, {}, ImportCounts(), [])

    def add(self, counts: ImportCounts, findings: Iterable[ImportFinding]) -> None:
        """Add a batch."""
        self.counts.add(counts)
        for finding in findings:
            if len(self.findings) >= MAX_LISTED:
                break
            self.findings.append(finding)

    @property
    def is_equal(self) -> bool:
        """Whether every room was imported, and nothing differs."""
        return self.counts.is_equal and not self.left_out


def _shown(value: str | None) -> str:
    return "nothing" if value is None else value
