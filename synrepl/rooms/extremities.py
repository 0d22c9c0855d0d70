"""Forward extremities: the events that nothing follows yet, which the next event will follow.

Events that are rejected, or soft-failed, are as if they were not there: they are no extremities, and
what follows them follows what they follow. Source:
https://spec.matrix.org/v1.16/server-server-api/#soft-failure and #rejection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol


class Standing(Protocol):
    """What has to be known of an event to tell what the ends of its room are."""

    @property
    def prev_event_ids(self) -> Iterable[str]:
        """The events that it follows."""
        ...

    @property
    def counts(self) -> bool:
        """Whether it was accepted, and did not soft-fail."""
        ...


def followed(prev_event_ids: Iterable[str], find: Callable[[str], Standing | None]) -> set[str]:
    """Those events that something which follows these leaves behind.

    These are the events themselves and, where one of them does not count, those that it
    follows, and so on.

    :param find: an event that is known; None for any other
    """
    found: set[str] = set()
    ahead = list(prev_event_ids)
    while ahead:
        event_id = ahead.pop()
        event = find(event_id)
        if event is not None and not event.counts and event_id not in found:
            ahead.extend(event.prev_event_ids)
        found.add(event_id)
    return found


def extremities_after(
    extremities: frozenset[str],
    event_id: str,
    event: Standing,
    find: Callable[[str], Standing | None],
) -> frozenset[str]:
    """The forward extremities once an event has been taken in.

    :param extremities: those before
    :param event: nothing that follows it has been taken in
    :param find: an event that was taken in before; None for any other
    """
    if not event.counts:
        return extremities
    return (extremities - followed(event.prev_event_ids, find)) | {event_id}
