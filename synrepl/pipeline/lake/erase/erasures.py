"""What is to be erased, and which cells that makes empty. Rows stay: counts and IDs hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from synrepl.pipeline.source.database.stream_schema import StreamSchema

#: An event in a room; with "" for the room, in whichever room it is.
RoomEvent = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ErasureRule:
    """How a stream's rows tell of redactions, and what redactions leave of its rows.

    :ivar kind: of the rows that this is about; None in a stream without kinds
    :ivar trigger: column with the ID of the event that a row's own event redacts
    :ivar unless: a boolean column; where it is true the row redacts nothing
    :ivar target: column with the row's own event ID
    :ivar within: column that has to be the same in both, the room
    :ivar cleared: columns that become null in a row whose event is redacted
    """

    stream: str
    kind: str | None
    trigger: str
    unless: str | None
    target: str
    within: str
    cleared: tuple[str, ...]

    def fits(self, stream_schema: StreamSchema) -> bool:
        """True when a stream is the one that is meant, and not just of the same name."""
        names = {column.name for column in stream_schema.columns}
        wanted = {self.trigger, self.target, self.within, *self.cleared}
        wanted |= {self.unless} if self.unless else set()
        wanted |= {"kind"} if self.kind else set()
        return stream_schema.stream == self.stream and wanted <= names


#: A redaction in one stream is about events in all of them.
#:
#: Source: the Matrix specification, room versions 1 to 12, "RedactionCache". Of an event's own
#: keys ``event_id``, ``type``, ``room_id`` and ``state_key`` survive in all of them, and so
#: does ``content.membership`` of a member event. ``content["m.relates_to"]`` survives in none.
#: ``redacts`` of a redaction survives from version 11 on, and rows do not tell the version of
#: their room: it is kept, being no more than the ID of an event, and a redaction is not undone
#: by redacting it.
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
    """What is to be erased; can be sent to tasks. Nothing, unless told otherwise.

    :ivar subjects: user IDs, or any texts that stand for somebody
    :ivar redacted: events that have been redacted
    """

    subjects: frozenset[str] = frozenset()
    redacted: frozenset[RoomEvent] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.subjects or self.redacted)


def rules_for(
    stream_schema: StreamSchema, rules: Iterable[ErasureRule] = RULES
) -> list[ErasureRule]:
    """The rules about a stream; declared streams have none."""
    return [rule for rule in rules if rule.fits(stream_schema)]
