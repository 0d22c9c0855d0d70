"""The newest membership of a user, as SQL: by the events, and by the history that no event tells."""

from __future__ import annotations

from collections.abc import Callable

from synrepl.storage.rooms.visibility.audience import MEMBERSHIPS, NEVER_BITS
from synrepl.storage.rooms.visibility.audience_sql import membership_set

#: The text of the membership that an event ``e`` sets.
MEMBERSHIP_TEXT = f"('{{{','.join(MEMBERSHIPS)}}}'::text[])[{membership_set('e.audience')} + 1]"


def newest_membership_sql(key: str, user: str, is_covered: Callable[[str], str]) -> str:
    """The newest membership of a user in a room, as ``membership``, ``stream_id`` and ``event_no``; no row if none is known.

    :param key: what has the ``room_no`` and the ``slot`` of the user's membership
    :param user: the user's ID, as an expression
    :param is_covered: whether a stream ID counts, from an expression to another
    """
    return (
        f"(SELECT {MEMBERSHIP_TEXT} AS membership, e.stream_id, e.event_no, 1 AS rank"
        "  FROM synrepl._room_events e"
        f"  WHERE e.room_no = {key}.room_no AND e.slot = {key}.slot AND e.stream_id > 0"
        f"   AND e.audience & {NEVER_BITS} = 0 AND {is_covered('e.stream_id')}"
        "  ORDER BY e.stream_id DESC LIMIT 1)"
        " UNION ALL"
        " (SELECT h.membership, h.stream_id, NULL, 0 FROM synrepl._membership_history h"
        f"  WHERE h.room_no = {key}.room_no AND h.user_id = {user} AND {is_covered('h.stream_id')}"
        "  ORDER BY h.stream_id DESC LIMIT 1)"
        " ORDER BY stream_id DESC, rank LIMIT 1"
    )
