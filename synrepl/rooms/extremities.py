"""Forward extremities: events that are no event's prev event yet.

They become the prev events of the next event. Rejected and soft-failed events are skipped: they are never
forward extremities, and an event on top of them counts as being on top of their prev events. Source:
https://spec.matrix.org/v1.16/server-server-api/#soft-failure and #rejection.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Set
from typing import Protocol


class ReferringEvent(Protocol):
    """What :class:`ForwardExtremities` needs to know about an event."""

    @property
    def prev_event_ids(self) -> Iterable[str]:
        """IDs of its prev events."""
        ...

    @property
    def passed_all_checks(self) -> bool:
        """Whether it was accepted and not soft-failed."""
        ...


def superseded_by(
    prev_event_ids: Iterable[str],
    find: Callable[[str], ReferringEvent | None],
    skipped: Container[str] = frozenset(),
) -> set[str]:
    """The events that stop being forward extremities once an event follows these.

    These are the events themselves and, where one was rejected or soft-failed, also its prev
    events, and so on.

    :param find: returns a known event; None for any other
    :param skipped: rejected or soft-failed events whose prev events were processed before
    """
    found: set[str] = set()
    ahead = list(prev_event_ids)
    while ahead:
        event_id = ahead.pop()
        if event_id in skipped or event_id in found:
            continue
        found.add(event_id)
        event = find(event_id)
        if event is not None and not event.passed_all_checks:
            ahead.extend(event.prev_event_ids)
    return found


class ForwardExtremities:
    """The forward extremities of a room, updated event by event.

    An event that arrives after one that follows it never becomes one.

    :ivar event_ids: the current forward extremities
    """

    __slots__ = ("_missing_prev_events", "_skipped", "event_ids")

    def __init__(
        self, event_ids: Iterable[str] = (), missing_prev_events: Iterable[str] = ()
    ) -> None:
        """
        :param event_ids: the initial forward extremities
        :param missing_prev_events: see :attr:`missing_prev_events`
        """
        self.event_ids = frozenset(event_ids)
        self._missing_prev_events = set(missing_prev_events)
        # Rejected or soft-failed events that were followed, so that a long chain of them is walked once.
        self._skipped: set[str] = set()

    @classmethod
    def of(cls, events: Iterable[tuple[str, ReferringEvent]]) -> ForwardExtremities:
        """The forward extremities of some events, given with their IDs in the order of their arrival."""
        extremities = cls()
        known: dict[str, ReferringEvent] = {}
        for event_id, event in events:
            extremities.add(event_id, event, known.get)
            known[event_id] = event
        return extremities

    @property
    def missing_prev_events(self) -> Set[str]:
        """Unknown events that known ones follow; they will not become forward extremities."""
        return self._missing_prev_events

    def add(
        self,
        event_id: str,
        event: ReferringEvent,
        find: Callable[[str], ReferringEvent | None],
        *,
        is_followed: bool = False,
    ) -> None:
        """Add an event.

        :param find: returns an event that was added before; None for any other
        :param is_followed: whether it is known that an event follows it which passed all checks
        """
        already_followed = is_followed or event_id in self._missing_prev_events
        self._missing_prev_events.discard(event_id)
        # An event on top of a rejected or soft-failed one counts as on top of that one's prev events.
        if event.passed_all_checks or already_followed:
            superseded = superseded_by(event.prev_event_ids, find, self._skipped)
            for each in superseded:
                known = find(each)
                if known is None:
                    self._missing_prev_events.add(each)
                elif not known.passed_all_checks:
                    self._skipped.add(each)
            self.event_ids -= superseded
        if event.passed_all_checks and not already_followed:
            self.event_ids |= {event_id}
