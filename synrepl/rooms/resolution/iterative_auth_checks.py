"""Iterative auth checks: events are applied to a state one by one, if the auth rules allow them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import cast

from synrepl.rooms.auth.authorise import authorise
from synrepl.rooms.chains import Fetch, create_id
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import CREATE_KEY
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.resolution.trace import ResolutionStep, ResolutionTrace
from synrepl.rooms.state import StateKey


class IterativeAuthState:
    """The state during resolution, as the auth rules read it.

    Events are fetched only when a rule reads them.

    :ivar applied: the entries applied so far
    """

    __slots__ = ("_checked", "_fetch", "_known", "_rejected", "_unconflicted", "applied")

    def __init__(
        self,
        unconflicted: Callable[[StateKey], str | None],
        fetch: Fetch,
        rejected: Container[str] = (),
    ) -> None:
        """
        :param unconflicted: the entries of the initial state
        :param rejected: events that must not authorise others, from the state or as auth events
        """
        self.applied: dict[StateKey, str] = {}
        self._unconflicted = unconflicted
        self._fetch = fetch
        self._rejected = rejected
        self._known: dict[StateKey, Event] = {}
        self._checked: Event | None = None

    def get(self, key: StateKey) -> Event | None:
        """The entry of a key; without one that was not rejected, the auth event of the event being checked."""
        event = self._known.get(key)
        return self._look_up(key) if event is None else event

    def entry(self, key: StateKey) -> str | None:
        """The ID of a key's entry, rejected or not."""
        return self.applied.get(key) or self._unconflicted(key)

    def _look_up(self, key: StateKey) -> Event | None:
        event_id = self.entry(key)
        if event_id is not None and event_id not in self._rejected:
            event = self._known[key] = self._fetch(event_id)
            return event
        checked = self._checked
        if checked is None:
            return None
        if key == CREATE_KEY and checked.version.room_id_is_create_hash:
            create = create_id(checked)
            if create in self._rejected:
                return None
            # It is the same for every event of the room, so it can be cached.
            event = self._known[key] = self._fetch(create)
            return event
        return self._cited(checked, key)

    def _cited(self, checked: Event, key: StateKey) -> Event | None:
        """The auth event of an event for a key, unless it was rejected."""
        kind, state_key = key
        for event_id in checked.auth_event_ids:
            event = self._fetch(event_id)
            if (
                event.type == kind
                and event.state_key == state_key
                and event_id not in self._rejected
            ):
                return event
        return None

    def allows(self, event: Event) -> bool:
        """Whether the auth rules allow an event, by this state alone."""
        return _judged(event, self) is None

    def apply(self, event: Event, key: StateKey) -> None:
        """Make an event the entry of its key."""
        self._known.pop(key, None)
        if event.event_id not in self._rejected:
            self._known[key] = event
        self.applied[key] = event.event_id

    def revert(self, key: StateKey) -> None:
        """Undo what was applied to a key."""
        self._known.pop(key, None)
        del self.applied[key]

    def iterative_auth_checks(
        self,
        events: Iterable[Event],
        step: ResolutionStep = ResolutionStep.POWER,
        trace: ResolutionTrace | None = None,
    ) -> None:
        """Apply each of these events that the auth rules allow.

        "Iterative auth checks" of https://spec.matrix.org/v1.16/rooms/v2/#definitions: for a key that the
        state lacks, the auth event of the event is used.
        """
        for event in events:
            if event.state_key is not None:
                self._checked = event
                refusal = _judged(event, self)
                if refusal is None:
                    self.apply(event, (event.type, event.state_key))
                if trace is not None:
                    trace.check(step, event, refusal)
        self._checked = None


# The rules call nothing but ``get`` of the mapping.
_judged = cast(Callable[[Event, IterativeAuthState], Refusal | None], authorise)
