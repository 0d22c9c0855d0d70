"""The tables that all jobs over rooms take: their columns, and the DataFrames together.

Numbers of state groups are those of the database that they come from. Times are in milliseconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from synrepl.pipeline.rooms.lookup import LookupSource
from synrepl.pipeline.rooms.parts.source import PartSource

_TYPES: dict[str, tuple[pa.DataType, t.DataType]] = {
    "text": (pa.string(), t.StringType()),
    "number": (pa.int64(), t.LongType()),
    "flag": (pa.bool_(), t.BooleanType()),
    "bytes": (pa.binary(), t.BinaryType()),
    "texts": (pa.list_(pa.string()), t.ArrayType(t.StringType())),
}


class TableColumns(NamedTuple):
    """The columns of one table.

    :ivar columns: name and type of each; the type is ``text``, ``texts``, ``number``, ``flag`` or ``bytes``, and
        ends in ``?`` where the column may be null
    """

    name: str
    columns: tuple[tuple[str, str], ...]

    @property
    def arrow(self) -> pa.Schema:
        """Its schema in Arrow."""
        return pa.schema(
            [
                pa.field(name, _TYPES[kind.rstrip("?")][0], kind.endswith("?"))
                for name, kind in self.columns
            ]
        )

    @property
    def spark(self) -> t.StructType:
        """Its schema in Spark."""
        return t.StructType(
            [
                t.StructField(name, _TYPES[kind.rstrip("?")][1], kind.endswith("?"))
                for name, kind in self.columns
            ]
        )


#: Rooms that have events. The version is null where nothing states it.
ROOMS = TableColumns("rooms", (("room_id", "text"), ("room_version", "text?")))

#: Every event, outliers among them.
#:
#: - ``state_key``: null for a message event
#: - ``depth``, ``origin_server_ts``: as the sender's server wrote them
#: - ``stream_ordering``: negative for history that was fetched later; ``topological_ordering``: after those of
#:   its prev events. Both are null for outliers of synrepl's own database
#: - ``outlier``: kept only because others cite it, so that it has no state; ``out_of_band``: an outlier
#:   for a membership of a room that the server has not joined
#: - ``rejected``, ``soft_failed``, ``refusal``: the server's verdict, and its reason
#: - ``redacted``: a redaction applies to it; ``erased``: its sender was erased. ``json`` is then the
#:   redacted form
#: - ``state_group_before``, ``state_group``: the state before and after it. A Synapse records only the
#:   latter
#: - ``json``: in federation format, byte for byte as stored unless it is in the redacted form; null if there is
#:   none
EVENTS = TableColumns(
    "events",
    (
        ("room_id", "text"),
        ("event_id", "text"),
        ("room_version", "text?"),
        ("type", "text"),
        ("state_key", "text?"),
        ("sender", "text?"),
        ("depth", "number"),
        ("origin_server_ts", "number?"),
        ("stream_ordering", "number?"),
        ("topological_ordering", "number?"),
        ("outlier", "flag"),
        ("out_of_band", "flag"),
        ("rejected", "flag"),
        ("soft_failed", "flag"),
        ("redacted", "flag"),
        ("erased", "flag"),
        ("refusal", "text?"),
        ("state_group_before", "number?"),
        ("state_group", "number?"),
        ("json", "bytes?"),
    ),
)

#: Events of a part of a room as jobs that judge them read them: JSON as stored.
JUDGED_EVENTS = TableColumns(
    "judged_events",
    (
        ("room_id", "text"),
        ("event_id", "text"),
        ("topological_ordering", "number?"),
        ("stream_ordering", "number?"),
        ("rejected", "flag"),
        ("state_group_before", "number?"),
        ("state_group", "number?"),
        ("json", "bytes?"),
    ),
)

#: The same with what is compared with the JSON; prev events, whether the database has them or not.
VERIFIED_EVENTS = TableColumns(
    "verified_events",
    (
        *JUDGED_EVENTS.columns,
        ("type", "text"),
        ("state_key", "text?"),
        ("sender", "text?"),
        ("depth", "number"),
        ("out_of_band", "flag"),
        ("erased", "flag"),
        ("prev_event_ids", "texts"),
    ),
)

#: The order of a room's events that have a state: a row for each prev event that has one, too, with its stream
#: ordering, and one for an event without any.
ROOM_ORDER = TableColumns(
    "room_order",
    (
        ("topological_ordering", "number"),
        ("stream_ordering", "number"),
        ("prev_stream_ordering", "number?"),
        ("has_state_group", "flag"),
    ),
)

#: The prev events of events, whether the database has them or not.
EDGES = TableColumns(
    "edges", (("room_id", "text"), ("event_id", "text"), ("prev_event_id", "text"))
)

#: The auth events of events; also ``m.room.create`` where the room ID implies it, in synrepl's own database.
AUTH_EDGES = TableColumns(
    "auth_edges", (("room_id", "text"), ("event_id", "text"), ("auth_event_id", "text"))
)

#: State groups. One with a ``prev_state_group`` is stored as what differs from that one. ``made_for`` is the
#: event that it was made for, which a Synapse records; ``digest`` is that of its entries, which synrepl does.
STATE_GROUPS = TableColumns(
    "state_groups",
    (
        ("room_id", "text"),
        ("state_group", "number"),
        ("prev_state_group", "number?"),
        ("made_for", "text?"),
        ("digest", "bytes?"),
    ),
)

#: The stored entries of state groups. ``event_id`` is null where the entry of the previous group is
#: removed, which only synrepl does. ``room_id`` is that of the row, where the database has one.
STATE_GROUP_ENTRIES = TableColumns(
    "state_group_entries",
    (
        ("room_id", "text"),
        ("state_group", "number"),
        ("type", "text"),
        ("state_key", "text"),
        ("event_id", "text?"),
    ),
)

#: The state group after each event that has one, and before it.
EVENT_STATE_GROUPS = TableColumns(
    "event_state_groups",
    (
        ("room_id", "text"),
        ("event_id", "text"),
        ("state_group_before", "number?"),
        ("state_group", "number"),
    ),
)

#: The current state of rooms.
CURRENT_STATE = TableColumns(
    "current_state",
    (("room_id", "text"), ("type", "text"), ("state_key", "text"), ("event_id", "text")),
)

#: The memberships in current states.
MEMBERSHIPS = TableColumns(
    "memberships",
    (("room_id", "text"), ("user_id", "text"), ("membership", "text"), ("event_id", "text")),
)

#: Who may see an event, packed (:mod:`synrepl.storage.rooms.visibility.audience`). A Synapse stores nothing of the kind.
AUDIENCES = TableColumns(
    "audiences", (("room_id", "text"), ("event_id", "text"), ("audience", "number"))
)

#: The forward extremities of rooms.
FORWARD_EXTREMITIES = TableColumns(
    "forward_extremities", (("room_id", "text"), ("event_id", "text"))
)

#: Prev events that are known to be missing.
BACKWARD_EXTREMITIES = TableColumns(
    "backward_extremities", (("room_id", "text"), ("event_id", "text"))
)

ROOM_TABLES = (
    *(ROOMS, EVENTS, EDGES, AUTH_EDGES, STATE_GROUPS, STATE_GROUP_ENTRIES, EVENT_STATE_GROUPS),
    *(CURRENT_STATE, MEMBERSHIPS, AUDIENCES, FORWARD_EXTREMITIES, BACKWARD_EXTREMITIES),
)


@dataclass(frozen=True, slots=True)
class RoomFrames:
    """The tables of rooms as DataFrames, which are read when an action needs them.

    :ivar stored_events: the events with their JSON as stored, also where a redaction applies: for
        jobs that judge events again, whose results hold no content
    :ivar parts: reads parts of rooms in the tasks that judge them
    :ivar lookup: looks up single events and states in tasks
    """

    rooms: DataFrame
    events: DataFrame
    stored_events: DataFrame
    edges: DataFrame
    auth_edges: DataFrame
    state_groups: DataFrame
    state_group_entries: DataFrame
    event_state_groups: DataFrame
    current_state: DataFrame
    memberships: DataFrame
    audiences: DataFrame
    forward_extremities: DataFrame
    backward_extremities: DataFrame
    parts: PartSource
    lookup: LookupSource
