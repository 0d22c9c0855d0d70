"""Subscriptions to threads."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.effects import Invalidates, columns_key
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
    generations=Generation.since(Generation.CURRENT),
    effects={
        ThreadSubscriptionsRow: (
            Invalidates(
                "get_subscription_for_thread", columns_key("user_id", "room_id", "event_id")
            ),
        )
    },
)
