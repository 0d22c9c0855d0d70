"""Forward extremities: the events that nothing follows yet, which the next event will follow.

Events that are rejected, or soft-failed, are as if they were not there: they are no extremities, and
what follows them follows what they follow. Source:
https://spec.matrix.org/v1.16/server-server-api/#soft-failure and #rejection.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Set
from typing import Protocol


class GraphEvent(Protocol):
    """What has to be known of an event to tell what the ends of its room are."""

    @property
    def prev_event_ids(self) -> Iterable[str]:
        """The events that it follows."""
        ...

    @property
    def passed_all_checks(self) -> bool:
        """Whether it was accepted, and did not soft-fail."""
        ...


def superseded_by(
    prev_event_ids: Iterable[str],
    find: Callable[[str], GraphEvent | None],
    skipped: Container[str] = frozenset(),
) -> set[str]:
    """Those events that something which follows these leaves behind.

    These are the events themselves and, where one of them does not count, those that it
    follows, and so on.

    :param find: an event that is known; None for any other
    :param skipped: events that do not count, beyond which nobody needs to look
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
    """The forward extremities of a room, as its events are taken in.

    An event that comes after one that follows it is none.

    :ivar event_ids: what they are now
    """

    __slots__ = ("_missing_prev_events", "_skipped", "event_ids")

    def __init__(
        self, event_ids: Iterable[str] = (), missing_prev_events: Iterable[str] = ()
    ) -> None:
        """
        :param event_ids: to begin with
        :param missing_prev_events: see :attr:`missing_prev_events`
        """
        self.event_ids = frozenset(event_ids)
        self._missing_prev_events = set(missing_prev_events)
        # What does not count and was followed: a long chain of those is gone through once.
        self._skipped: set[str] = set()

    @classmethod
    def of(cls, events: Iterable[tuple[str, GraphEvent]]) -> ForwardExtremities:
        """Those of some events with their IDs, in the order in which they were taken in."""
        extremities = cls()
        known: dict[str, GraphEvent] = {}
        for event_id, event in events:
            extremities.add(event_id, event, known.get)
            known[event_id] = event
        return extremities

    @property
    def missing_prev_events(self) -> Set[str]:
        """Events that have not come, and would be no extremities if they did: others follow them."""
        return self._missing_prev_events

    def add(
        self, event_id: str, event: GraphEvent, find: Callable[[str], GraphEvent | None]
    ) -> None:
        """Go on with one more event.

        :param find: an event that was taken in before; None for any other
        """
        already_followed = event_id in self._missing_prev_events
        self._missing_prev_events.discard(event_id)
        # What follows one that does not count follows what that one follows.
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
