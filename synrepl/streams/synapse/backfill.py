"""Old events fetched from other servers, with stream IDs that go down.

Real servers send the newest row of a burst first. The rows commute, so all are applied.
"""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.row import Row


class BackfillRow(Row, frozen=True):
    """An old event has been fetched.

    :ivar redacts: the event it redacts
    :ivar relates_to: the event it relates to
    """

    event_id: str
    room_id: str
    type: str
    state_key: str | None
    redacts: str | None
    relates_to: str | None


BACKFILL = Stream("backfill", {UNTAGGED: BackfillRow}, counts_down=True, unordered=True)
