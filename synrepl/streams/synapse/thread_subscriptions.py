"""Subscriptions to threads."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.row import Row


class ThreadSubscriptionsRow(Row, frozen=True):
    """A user's subscription to a thread has changed.

    :ivar event_id: the event at the root of the thread
    """

    user_id: str
    room_id: str
    event_id: str


THREAD_SUBSCRIPTIONS = Stream(
    "thread_subscriptions",
    {UNTAGGED: ThreadSubscriptionsRow},
    generations=frozenset({Generation.CURRENT}),
)
