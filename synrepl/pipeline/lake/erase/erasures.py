"""Erasures, and the rules for the cells that a redaction clears.

Rows are kept, so counts and IDs do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from synrepl.pipeline.lake.erase.redacted_events import AppliedRedactions, RedactedEvents
from synrepl.pipeline.source.database.stream_schema import StreamSchema


@dataclass(frozen=True, slots=True)
class ErasureRule:
    """How redactions are found in a stream's rows, and which cells of redacted events are emptied.

    :ivar kind: the kind of the rows that the rule applies to; None in a stream without kinds
    :ivar trigger: the column with the ID of the event that the row's event redacts
    :ivar unless: a boolean column; the row redacts nothing where it is true
    :ivar target: the column with the ID of the row's own event
    :ivar within: the column with the room, which has to be the same in both
    :ivar cleared: the columns that become null in the rows of a redacted event
    """

    stream: str
    kind: str | None
    trigger: str
    unless: str | None
    target: str
    within: str
    cleared: tuple[str, ...]

    def fits(self, stream_schema: StreamSchema) -> bool:
        """True if a stream has the rule's name and all of its columns."""
        names = {column.name for column in stream_schema.columns}
        wanted = {self.trigger, self.target, self.within, *self.cleared}
        wanted |= {self.unless} if self.unless else set()
        wanted |= {"kind"} if self.kind else set()
        return stream_schema.stream == self.stream and wanted <= names


#: A redaction in one stream applies to events in all of them.
#:
#: Source: the Matrix specification, room versions 1 to 12, "Redactions". In all versions the keys
#: ``event_id``, ``type``, ``room_id`` and ``state_key`` survive, and so does ``content.membership``
#: of a member event; ``content["m.relates_to"]`` never does. ``redacts`` of a redaction survives
#: from version 11 on. Rows do not have the version of their room, so it is kept: it is only the ID
#: of an event, and redacting a redaction does not undo it.
RULES: tuple[ErasureRule, ...] = (
    ErasureRule(
        stream="events",
        kind="ev",
        trigger="redacts",
        unless="rejected",
        target="event_id",
        within="room_id",
        cleared=("relates_to",),
    ),
    ErasureRule(
        stream="backfill",
        kind=None,
        trigger="redacts",
        unless=None,
        target="event_id",
        within="room_id",
        cleared=("relates_to",),
    ),
)


@dataclass(frozen=True, slots=True)
class Erasures:
    """The erasures to apply, none by default. They can be pickled for tasks.

    :ivar subjects: user IDs, or other texts that identify somebody
    :ivar redacted: the events that redactions among the rows of a lake name
    :ivar applied: the events to which redactions apply, by the database: whole events get their redacted form
    """

    subjects: frozenset[str] = frozenset()
    redacted: RedactedEvents = field(default_factory=RedactedEvents)
    applied: AppliedRedactions = field(default_factory=AppliedRedactions)

    def __bool__(self) -> bool:
        return bool(self.subjects or self.redacted or self.applied)


@dataclass(frozen=True, slots=True)
class Epochs:
    """The :attr:`.StreamTable.epoch` of the tables of a lake, by stream; 0 where there is none."""

    streams: Mapping[str, int] = field(default_factory=dict)
    quarantines: Mapping[str, int] = field(default_factory=dict)


def rules_for(
    stream_schema: StreamSchema, rules: Iterable[ErasureRule] = RULES
) -> list[ErasureRule]:
    """The rules that apply to a stream; declared streams have none."""
    return [rule for rule in rules if rule.fits(stream_schema)]
