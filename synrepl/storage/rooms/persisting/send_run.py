"""Builds an event of this server on top of a room, and persists it in the same transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from synrepl.core.errors import InputError, Refused, SynreplError
from synrepl.rooms import (
    BadEvent,
    Certainty,
    Event,
    EventBuilder,
    EventDraft,
    Judged,
    NoCanonicalJson,
    NoRoomToBuildIn,
    RedactionReason,
    StateKey,
    authorise,
    certainty_of,
    check_state_independent,
    effect_of_redaction,
    judge,
)
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.persisting.batch import RoomBatch
from synrepl.storage.rooms.persisting.limits import EVENT_REFUSALS, RoomLimits
from synrepl.storage.rooms.persisting.persist_run import PersistRun
from synrepl.storage.rooms.persisting.room_memory import RoomMemories, RoomMemory
from synrepl.storage.rooms.states.state_handle import StoredState
from synrepl.storage.rooms.tables.incoming import (
    EventOutcome,
    IncomingEvent,
    PersistedEvent,
)
from synrepl.storage.rooms.tables.numbers import OpenedRoom, UnknownRoom, require_room
from synrepl.storage.rooms.tables.sent_events import SENT_TABLE, SentRequest
from synrepl.storage.short_work import Opening

_CREATE: StateKey = ("m.room.create", "")
_POWER_LEVELS: StateKey = ("m.room.power_levels", "")

#: Errors of an event that nothing was stored of; the room is as it was.
_DRAFT_ERRORS = (*EVENT_REFUSALS, BadEvent, NoCanonicalJson)


class EventNotAllowed(Refused):
    """{reason}"""


class RedactedEventUnknown(InputError):
    """event {event_id} is not in room {room_id}"""


class OutgoingEvent(NamedTuple):
    """An event to be built and sent.

    :ivar request: the request that it is sent for, to be recorded with it
    :ivar memberships: of the user in its state key, one of which it requires; None for no such condition
    """

    draft: EventDraft
    request: SentRequest | None = None
    memberships: Collection[str] | None = None


class SendRun(PersistRun):
    """One run of building an event and persisting it, as a work function.

    What the rules refuse is not stored. It ends with :attr:`refused`, and the transaction changes nothing.

    :ivar refused: why the event was not sent; None if it was
    """

    def __init__(
        self,
        room_id: str,
        builder: EventBuilder,
        outgoing: OutgoingEvent,
        memories: RoomMemories,
        room_nos: Mapping[str, int],
        limits: RoomLimits,
        reserves_early: bool = True,
    ) -> None:
        super().__init__(
            room_id,
            builder.version.name,
            (),
            memories,
            room_nos,
            limits,
            reserves_early=reserves_early,
        )
        self._builder = builder
        self._outgoing = outgoing
        self._built_on: RoomMemory | None = None
        self.refused: SynreplError | None = None

    def __call__(self, txn: Transaction, outbox: Outbox) -> PersistRun:
        """Build the event, judge it and write everything but what needs tokens."""
        self._build_on_memory()
        return super().__call__(txn, outbox)

    def opening(self, outbox: Outbox) -> Opening | None:
        """Build the event on what is remembered of the room, and open the room if it still is like that."""
        self._build_on_memory()
        return super().opening(outbox)

    def _build_on_memory(self) -> None:
        memory = self._memories.remembered(self._room_id)
        draft, _, memberships = self._outgoing
        event = None
        if memory is not None and draft.redacts is None and memberships is None:
            event = _built_on_memory(memory, self._room_id, self._builder, draft)
        self._built_on = memory
        self._incoming = () if event is None else (_outgoing(event),)
        self._new_ids = [each.event.event_id for each in self._incoming]

    def _open(self, txn: Transaction, new_ids: Sequence[str]) -> OpenedRoom:
        """Lock the room, which must be here.

        :raises UnknownRoom: it is not
        """
        if self._room_id not in self._room_nos:
            require_room(txn, self._room_id)
        return super()._open(txn, new_ids)

    def _arrived(self, batch: RoomBatch) -> Sequence[IncomingEvent]:
        """The event, unless it is refused.

        :raises UnknownRoom: the room has no event
        """
        self.refused = None
        if self._incoming and batch.memory is self._built_on:
            return self._incoming
        try:
            event = self._built(batch)
        except _DRAFT_ERRORS as error:
            self.refused = error
            return ()
        except NoRoomToBuildIn:
            raise UnknownRoom(room_id=self._room_id) from None
        return () if event is None else (_outgoing(event),)

    def _built(self, batch: RoomBatch) -> Event | None:
        """Build and judge the event, before anything of the room is changed; None if it is refused.

        :raises NoRoomToBuildIn: and the errors of :data:`_DRAFT_ERRORS`
        """
        view, cache = batch.view, batch.memory.resolutions
        event = self._builder.build(self._outgoing.draft, view, cache)
        judged: Judged[StoredState] = judge(event, view, cache=cache)
        reason = judged.refusal or judged.soft_failure
        if reason is not None:
            self.refused = EventNotAllowed(reason=reason.sentence)
        else:
            self.refused = self._redaction_error(batch, judged) or self._membership_error(
                batch, judged
            )
        return event if self.refused is None else None

    def _redaction_error(
        self, batch: RoomBatch, judged: Judged[StoredState]
    ) -> SynreplError | None:
        """Why a redaction is refused although the rules allow the event: its sender must be able to redact the target.

        Source: https://spec.matrix.org/v1.16/client-server-api/#redactions
        """
        event, view = judged.event, batch.view
        if event.redacts is None:
            return None
        target = None
        if "\0" not in event.redacts:
            target = view.known_events([event.redacts]).events.get(event.redacts)
        if target is None:
            return RedactedEventUnknown(event_id=event.redacts[:255], room_id=self._room_id)
        assert judged.state_before is not None
        state = view.state_events(judged.state_before, [_CREATE, _POWER_LEVELS])
        why = effect_of_redaction(event, target, state).why
        is_own = target.sender == event.sender and why is RedactionReason.SAME_SERVER
        if why is RedactionReason.POWER or is_own:
            return None
        return EventNotAllowed(
            reason=f"{event.sender} may not redact this event of {target.sender}"
        )

    def _membership_error(
        self, batch: RoomBatch, judged: Judged[StoredState]
    ) -> SynreplError | None:
        """Why an event is refused that requires another membership of its user.

        In a partial room, the rules decide about users whose membership is not known yet.
        """
        memberships, event = self._outgoing.memberships, judged.event
        if memberships is None:
            return None
        key = event.type, event.state_key or ""
        assert judged.state_before is not None
        before = batch.view.state_events(judged.state_before, [key]).get(key)
        server = event.sender.partition(":")[2]
        if before is None and judged.partial and certainty_of(key, server) is Certainty.UNKNOWN:
            return None
        membership = "leave" if before is None else before.membership
        if membership in memberships:
            return None
        return EventNotAllowed(reason=f"the membership of {key[1]} is {membership!s:.50}")

    def _check(self, batch: RoomBatch, given: Sequence[PersistedEvent]) -> None:
        """Record the request.

        :raises EventNotAllowed: the event was not accepted after all
        """
        for each in given:
            if each.error is not None:
                raise each.error
            if each.outcome not in (EventOutcome.ACCEPTED, EventOutcome.KNOWN):
                sentence = "it was not accepted" if each.refusal is None else each.refusal.sentence
                raise EventNotAllowed(reason=sentence)
            if self._outgoing.request is not None:
                batch.rows.add(SENT_TABLE, self._outgoing.request.row(each.event_id))


def _outgoing(event: Event) -> IncomingEvent:
    return IncomingEvent(event, outgoing=True)


def _built_on_memory(
    memory: RoomMemory, room_id: str, builder: EventBuilder, draft: EventDraft
) -> Event | None:
    """Build an event on what is remembered of a room; None if that is not enough, or the rules refuse it."""
    ends, heads = memory.extremities, memory.heads
    if ends is None or heads is None or len(ends.event_ids) != 1:
        return None
    (end,) = ends.event_ids
    at, followed = memory.at.get(end), memory.parsed.get(end)
    if at is None or at.partial or at.state_after is None or followed is None:
        return None
    keys = list(dict.fromkeys([_CREATE, *builder.auth_keys(draft)]))
    entries = memory.known_entries(at.state_after, keys)
    if entries is None:
        return None
    state: dict[StateKey, Event] = {}
    for key, entry in zip(keys, entries, strict=True):
        if entry is not None:
            if entry not in memory.parsed:
                return None
            state[key] = memory.parsed[entry]
    cited = [state[key] for key in builder.auth_keys(draft) if key in state]
    try:
        event = builder.assemble(draft, room_id, [followed], cited)
    except (BadEvent, NoCanonicalJson):
        return None  # it is reported when the room is locked
    refused = check_state_independent(event) or authorise(event, state)
    return event if refused is None else None
