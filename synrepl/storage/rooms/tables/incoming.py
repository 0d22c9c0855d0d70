"""Events to persist, and the outcome of each."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from synrepl.core.errors import InputError, SynreplError
from synrepl.rooms import Event, Refusal, StateMap


class NotStorable(InputError):
    """event {event_id} cannot be stored: {field} contains the character NUL, which no text in PostgreSQL can have; nothing was stored of it"""


class IncomingEvent(NamedTuple):
    """An event, and how it came.

    :ivar live: whether check 6 applies, which is for events sent as they happen, not for history
    :ivar backfilled: whether it is older than what is here, and goes into the stream ``backfill``
    :ivar outlier: it came only because others cite it: check 4 only
    :ivar state_before: the state before it as another server reported it; its prev events need not be known then
    :ivar partial: whether ``state_before`` is partial
    :ivar soft_failure: why it is soft-failed, if that was decided elsewhere, as by a server whose rooms are
        imported; it depends on when the event arrived there
    :ivar checked_by_room: whether check 6 applies also with ``state_before``: the server that reported it may lie
    :ivar outgoing: whether this server sends it to the other servers in the room: an event of one of its users, or of one
        whom it has let into the room
    """

    event: Event
    live: bool = True
    backfilled: bool = False
    outlier: bool = False
    state_before: StateMap | None = None
    partial: bool = False
    soft_failure: Refusal | None = None
    checked_by_room: bool = False
    outgoing: bool = False

    @property
    def is_just_sent(self) -> bool:
        """Whether it is no history, and is judged by the states of the room alone."""
        return self.live and not self.backfilled and not self.outlier and self.state_before is None


class EventOutcome(StrEnum):
    """The outcome of an event."""

    ACCEPTED = "accepted"
    SOFT_FAILED = "soft-failed"
    REJECTED = "rejected"
    WAITING = "waiting"  #: for events that are missing
    KNOWN = "known"  #: it was there before, and stays as it was
    REFUSED = "refused"  #: nothing of it was stored


class PersistedEvent(NamedTuple):
    """The outcome of an event, with its numbers.

    :ivar stream_id: its stream ordering; None for an outlier, and for one that was not judged
    :ivar topological: its topological ordering, where it has a stream ordering
    :ivar refusal: why it was rejected or soft-failed
    :ivar missing: the events that it waits for
    :ivar error: why it was refused
    """

    event_id: str
    outcome: EventOutcome
    event_no: int | None = None
    stream_id: int | None = None
    topological: int | None = None
    refusal: Refusal | None = None
    missing: Sequence[str] = ()
    error: SynreplError | None = None


class PersistedBatch(NamedTuple):
    """The outcomes of a batch.

    :ivar events: the events that were given, in that order
    :ivar judged: what was judged, in that order: those of the events that were, and others that waited
        for them
    :ivar has_ready: whether more waiting events may be judged now
    """

    room_no: int
    revision: int
    events: Sequence[PersistedEvent]
    judged: Sequence[PersistedEvent]
    has_ready: bool


def check_storable(event: Event) -> None:
    """Check that PostgreSQL can hold an event's texts.

    :raises NotStorable: it cannot
    """
    together = (
        event.type,
        event.sender,
        event.state_key or "",
        event.event_id,
        *event.prev_event_ids,
        *event.auth_event_ids,
        event.room_id,
    )
    if "\0" not in "".join(together):
        return
    texts = {
        "its type": event.type,
        "its sender": event.sender,
        "its state_key": event.state_key or "",
        "its ID": event.event_id,
        "an ID in prev_events": "".join(event.prev_event_ids),
        "an ID in auth_events": "".join(event.auth_event_ids),
        "the ID of its room": event.room_id,
    }
    for field, text in texts.items():
        if "\0" in text:
            raise NotStorable(event_id=event.event_id.replace("\0", "\ufffd"), field=field)
