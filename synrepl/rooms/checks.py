"""Checks 4 to 6 on receipt of a PDU: against auth events, the state before, and the current state.

Source: https://spec.matrix.org/v1.16/server-server-api/#checks-performed-on-receipt-of-a-pdu, which numbers
them, and the proposal on faster joins. Checks 1 to 3 (format, signatures, hash) come first: an
:class:`~synrepl.rooms.event.Event` has passed check 1.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from enum import StrEnum

from synrepl.rooms.auth.authorise import authorise
from synrepl.rooms.auth.selection import auth_event_keys, check_auth_events
from synrepl.rooms.auth.state_independent import check_state_independent
from synrepl.rooms.chains import UnknownEvent
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import CREATE, CREATE_KEY
from synrepl.rooms.lookups import Lookup
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.state import StateKey
from synrepl.rooms.view import EntriesRequest, EventsRequest, StateHandle


class Check(StrEnum):
    """The check that an event failed."""

    AUTH_EVENTS = "auth_events"  #: 4, including the state-independent rules: the event is rejected
    STATE_BEFORE = "state_before"  #: 5: the event is rejected
    CURRENT_STATE = "current_state"  #: 6: the event is soft-failed


class Checks:
    """Checks 4, 5 and 6 of one event.

    The rules read only a few entries of a state, and mostly these are the same for all three
    checks, so the result is cached by entries.

    :param cited: all of its auth events
    :param create: the room's ``m.room.create``, for versions in which ``auth_events`` do not name it
    """

    __slots__ = ("_all_cited", "_answers", "_cited", "_event", "_keys")

    def __init__(self, event: Event, cited: Sequence[Event], create: Event | None) -> None:
        self._event = event
        self._all_cited = cited
        self._cited: dict[StateKey, Event] = {
            (each.type, each.state_key): each for each in cited if each.state_key is not None
        }
        self._keys = auth_event_keys(event)
        if event.version.room_id_is_create_hash and event.type != CREATE:
            self._keys = (CREATE_KEY, *self._keys)
            if create is not None:
                self._cited[CREATE_KEY] = create
        self._answers: dict[tuple[str | None, ...], Refusal | None] = {}

    @property
    def keys(self) -> tuple[StateKey, ...]:
        """The state keys that the rules read."""
        return self._keys

    def auth_events_state(self) -> dict[StateKey, str]:
        """The auth events as a state."""
        return {key: event.event_id for key, event in self._cited.items()}

    def by_auth_events(self, rejected: Container[str]) -> Refusal | None:
        """Check 4: the event by itself, its choice of auth events, and the rules against those.

        :param rejected: IDs of rejected events
        """
        event = self._event
        refusal = check_state_independent(event) or check_auth_events(
            event, self._all_cited, rejected
        )
        if refusal is not None:
            return refusal
        get = self._cited.get
        entries = tuple(
            [None if (each := get(key)) is None else each.event_id for key in self._keys]
        )
        answer = self._answers[entries] = authorise(event, self._cited)
        return answer

    def lookup_by_state(self, state: StateHandle) -> Lookup[Refusal | None]:
        """Checks 5 and 6: the rules against a state of the room.

        :raises UnknownEvent: an event of the state is not known
        """
        ((found,),) = yield (EntriesRequest((state,), self._keys),)
        entries = tuple(found)
        try:
            return self._answers[entries]
        except KeyError:
            pass
        (known,) = yield (EventsRequest([each for each in entries if each is not None]),)
        relevant: dict[StateKey, Event] = {}
        for key, event_id in zip(self._keys, entries, strict=True):
            if event_id is not None:
                if event_id not in known.events:
                    raise UnknownEvent(event_id=event_id)
                relevant[key] = known.events[event_id]
        answer = self._answers[entries] = authorise(self._event, relevant)
        return answer
