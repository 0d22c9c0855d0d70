"""What is found when rooms are verified: one row for each difference."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa

from synrepl.rooms import StateKey


class DifferenceKind(StrEnum):
    """What differs from what follows from the events."""

    NO_JSON = "no JSON"  #: the event has no JSON
    BAD_JSON = "bad JSON"  #: the JSON is no event of the room's version
    WRONG_ID = "wrong event ID"  #: the JSON is another event, or one of another room
    WRONG_HASH = "wrong content hash"
    BAD_SIGNATURE = "bad signature"
    WRONG_COLUMN = "wrong column"  #: a column differs from the JSON
    WRONG_EDGES = "wrong edges"  #: the stored prev events differ from the JSON
    MISSING_EVENT = "missing event"  #: something depends on an event that is not there
    VERDICT = "verdict"  #: the server accepted what the rules reject, or the reverse
    NO_STATE_GROUP = "no state group"  #: of an event that is no outlier
    BROKEN_GROUP = "broken state group"  #: it is missing, or a group that it is a delta to
    OTHER_ROOM = "other room"  #: a state group is one of another room
    STATE = "state"  #: an entry of the state after an event
    NOT_JUDGED = "not judged"  #: events depend on one another, or the room version is not known


#: The columns of a difference.
DIFFERENCES = pa.schema(
    [
        pa.field("room_id", pa.string()),
        pa.field("event_id", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("what", pa.string()),
        pa.field("type", pa.string()),
        pa.field("state_key", pa.string()),
        pa.field("state_group", pa.int64()),
        pa.field("stored", pa.string()),
        pa.field("computed", pa.string()),
    ]
)


class RoomDifference(NamedTuple):
    """One difference.

    :ivar what: the column that differs, or in which the missing event is named
    :ivar key: of an entry of a state
    :ivar stored: what the database has
    :ivar computed: what follows from the events; None: nothing
    """

    event_id: str
    kind: DifferenceKind
    what: str | None = None
    key: StateKey | None = None
    group: int | None = None
    stored: str | None = None
    computed: str | None = None


def differences_batch(room_id: str, found: list[RoomDifference]) -> pa.RecordBatch:
    """Differences of one room as a batch."""
    rows = [
        {
            "room_id": room_id,
            "event_id": each.event_id,
            "kind": each.kind.value,
            "what": each.what,
            "type": None if each.key is None else each.key[0],
            "state_key": None if each.key is None else each.key[1],
            "state_group": each.group,
            "stored": each.stored,
            "computed": each.computed,
        }
        for each in found
    ]
    return pa.RecordBatch.from_pylist(rows, DIFFERENCES)
