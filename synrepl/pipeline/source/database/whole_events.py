"""Streams of whole events: the facts of ``events`` and ``backfill``, each with its event as the room store has it.

Positions, writers and settlement are those of the facts. An event is written in the transaction that appends its
fact, so where the fact is settled the event is there, unless it was purged or its room forgotten since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from synrepl.pipeline.source.database.landed_states import (
    PROVISIONAL,
    STATE_COLUMNS,
    STATE_SIZE,
    base_and_changes_sql,
    state_sql,
)
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.positions.vector import PositionVector
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.visibility.audience import PLACE_BITS
from synrepl.storage.rooms.visibility.erased_users import is_erased_sql
from synrepl.streams.columns import Column, ColumnType

#: The streams of whole events, each with the stream of its facts.
BASES: Mapping[str, str] = {"room_events": "events", "room_backfill": "backfill"}

#: A room and an event of it.
RoomEvent = tuple[str, str]

#: An event to which a redaction applies: its room, its ID and its ``origin_server_ts``; None if the store no longer knows it.
#: Unlike a stream ID, the time is the same whenever the event came: again, after its room was forgotten, it was purged, or a
#: failover lost it.
RedactedRow = tuple[str, str, int | None]

#: The columns, in the words of :mod:`synrepl.pipeline.rooms.tables`, whose meanings they have.
#:
#: - ``room_id``, ``event_id``, ``type``, ``state_key``, ``redacts``: of the fact, so they are always there
#: - ``stored``: the room store had the event when it was read; otherwise it was purged, and what follows is null
#: - ``partial_state``: it was judged by incomplete state, so the verdict may change
#: - ``state_group_before``, ``state_group``: their numbers when it was read. Groups with equal states may be merged later
#: - ``audience``: who may see it, packed, without the bits of its place in the room
#: - ``prev_event_ids``, ``auth_event_ids``: in the order of their bytes
#: - ``json``: in federation format, byte for byte as stored (UTF-8), or the redacted form
#: - ``base_stream_id``, ``changed_…``, ``state_size``: the state after it; see :mod:`.landed_states`
CELLS = (
    Column("room_id", ColumnType.TEXT, True),
    Column("event_id", ColumnType.TEXT, True),
    Column("type", ColumnType.TEXT, True),
    Column("state_key", ColumnType.TEXT, True),
    Column("redacts", ColumnType.TEXT, True),
    Column("stored", ColumnType.BOOLEAN, False),
    Column("room_version", ColumnType.TEXT, True),
    Column("sender", ColumnType.TEXT, True),
    Column("depth", ColumnType.BIGINT, True),
    Column("origin_server_ts", ColumnType.BIGINT, True),
    Column("topological_ordering", ColumnType.BIGINT, True),
    Column("rejected", ColumnType.BOOLEAN, True),
    Column("soft_failed", ColumnType.BOOLEAN, True),
    Column("partial_state", ColumnType.BOOLEAN, True),
    Column("redacted", ColumnType.BOOLEAN, True),
    Column("refusal", ColumnType.TEXT, True),
    Column("state_group_before", ColumnType.BIGINT, True),
    Column("state_group", ColumnType.BIGINT, True),
    Column("audience", ColumnType.BIGINT, True),
    Column("prev_event_ids", ColumnType.TEXT_ARRAY, True),
    Column("auth_event_ids", ColumnType.TEXT_ARRAY, True),
    Column("json", ColumnType.TEXT, True),
    *STATE_COLUMNS,
)

#: The columns of the fact.
FACT_CELLS = ("room_id", "event_id", "type", "state_key", "redacts")

#: What judging an event again may change, beside the numbers of its state groups.
VERDICT_CELLS = (
    *("rejected", "soft_failed", "partial_state", "refusal", "audience"),
    STATE_SIZE,
)

#: What merging state groups with equal states may change, too.
GROUP_CELLS = ("state_group_before", "state_group")

#: What a redaction changes.
FORM_CELLS = ("redacted", "json")

#: The tables that are read. A role without the right to read one is not offered these streams, see :mod:`.room_rights`.
TABLES = (
    *("_room_events", "_rooms", "_room_event_json", "_backward_extremities", "_room_heads"),
    *("_redactions", "_erased_users", "_erased_subjects", "_event_numbers"),
    *("_state_groups", "_room_keys"),
)

#: In which form the JSON is to be shown: null, or a word and the room version; see :mod:`..reading.event_form`.
FORM = "form"

#: The JSON as stored. The column ``json``, which conditions test, is null where it is to be shown in another form.
STORED_JSON = "stored_json"


def _flag(flag: EventFlags | int) -> str:
    return f"e.flags & {int(flag)} <> 0"


#: The sender of an event ``e``, or the event itself, was erased.
IS_ERASED = (
    f"{_flag(EventFlags.ERASED)} OR {is_erased_sql('e.sender')}"
    " OR EXISTS (SELECT FROM synrepl._erased_subjects u WHERE u.subject = e.sender)"
)

#: The edges of an event, whether the store has their events or not. Other events may come, or be purged, so that the
#: store keeps an edge elsewhere: it is the same edge.
_PREV_EVENT_IDS = """ARRAY(SELECT x.event_id FROM (
        SELECT p.event_id FROM unnest(e.prev_nos) AS n (event_no)
            JOIN synrepl._room_events p ON p.event_no = n.event_no
        UNION SELECT b.missing_id FROM synrepl._backward_extremities b
            WHERE b.room_no = e.room_no AND b.child_no = e.event_no) AS x
    ORDER BY x.event_id COLLATE "C")"""

_AUTH_EVENT_IDS = """ARRAY(SELECT a.event_id FROM unnest(e.auth_nos) AS n (event_no)
        JOIN synrepl._room_events a ON a.event_no = n.event_no ORDER BY a.event_id COLLATE "C")"""

#: Columns of the event, in SQL; null without one.
_OF_EVENT = {
    "room_version": "e.version",
    "sender": "e.sender",
    "depth": "e.depth",
    "origin_server_ts": "e.origin_server_ts",
    "topological_ordering": "e.topological",
    "rejected": _flag(EventFlags.REJECTED),
    "soft_failed": _flag(EventFlags.SOFT_FAILED),
    "partial_state": _flag(PROVISIONAL),
    "redacted": "CASE WHEN e.event_no IS NOT NULL THEN e.redacted_by IS NOT NULL END",
    "refusal": "e.refusal",
    "state_group_before": "e.group_before",
    "state_group": "e.group_after",
    "audience": f"(e.audience & ~{PLACE_BITS})::bigint",
    "prev_event_ids": f"CASE WHEN e.event_no IS NOT NULL THEN {_PREV_EVENT_IDS} END",
    "auth_event_ids": f"CASE WHEN e.event_no IS NOT NULL THEN {_AUTH_EVENT_IDS} END",
    FORM: f"CASE WHEN {IS_ERASED} THEN 'erased ' WHEN e.redacted_by IS NOT NULL THEN 'redacted ' END || e.version",
}

#: The JSON, in both columns that have it.
_JSON = {
    "json": f"CASE WHEN {_OF_EVENT[FORM]} IS NULL THEN convert_from(e.raw, 'UTF8') END",
    STORED_JSON: "convert_from(e.raw, 'UTF8')",
}


def whole_event_schema(stream: str) -> StreamSchema:
    """The columns of a stream of whole events."""
    return StreamSchema(stream, BASES[stream] == "backfill", CELLS)


def has_whole_events(stream_schema: StreamSchema) -> bool:
    """Whether a stream is one of whole events, and not one that was declared under its name."""
    names = {cell.name for cell in stream_schema.cells}
    return stream_schema.stream in BASES and names.issuperset((*FACT_CELLS, *FORM_CELLS, "stored"))


def facts_sql(base: str) -> str:
    """The facts of the events, as a relation with ``stream_id``, ``row_no`` and ``writer``."""
    return f"(SELECT f.stream_id, f.row_no, f.writer FROM synrepl.{base} f WHERE {_is_event(base)})"


def events_sql(
    base: str, low: str, high: str, *, with_json: bool = True, with_states: bool = True
) -> str:
    """The facts with their events, as a relation with all columns, :data:`FORM` and :data:`STORED_JSON`.

    Events are looked up by the stream IDs of their facts, within a range that is stated twice, because PostgreSQL does not
    derive it for the other side of an outer join.

    :param low: the least stream ID, as SQL
    :param high: and the greatest
    :param with_json: False: it is null, so that no row fails because its bytes are no text
    :param with_states: False: the columns of the state are not there, and cost nothing
    """
    columns = {**_OF_EVENT, **(_JSON if with_json else dict.fromkeys(_JSON, "NULL::text"))}
    if with_states:
        columns |= state_sql()
    states = base_and_changes_sql(base) if with_states else ""
    event = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
    facts = ", ".join(f"f.{name}" for name in FACT_CELLS)
    return (
        f"(SELECT f.stream_id, f.row_no, f.writer, {facts}, e.event_no IS NOT NULL AS stored, {event}"
        f" FROM synrepl.{base} f LEFT JOIN (SELECT s.*, r.room_id, r.version, j.raw"
        " FROM synrepl._room_events s JOIN synrepl._rooms r ON r.room_no = s.room_no"
        " LEFT JOIN synrepl._room_event_json j ON j.event_no = s.event_no"
        f" WHERE s.stream_id BETWEEN {low} AND {high}) AS e"
        # While a room is being forgotten, it has another name.
        " ON e.stream_id = f.stream_id AND e.event_id = f.event_id AND e.room_id = f.room_id"
        f"{states} WHERE {_is_event(base)})"
    )


def redacted_sql(base: str, in_range: str, low: str, high: str) -> str:
    """A statement for the rooms, IDs and times of events to which redactions in a range apply.

    A redaction of an event that the store no longer has counts: nobody can tell any more whether it applied. The others are
    found by the store, too, because their facts may have been trimmed. When a partial
    room is completed, redactions are judged again, so all that apply in it are selected.

    :param in_range: a condition on ``stream_id`` and ``writer`` of facts
    :param low: the least stream ID that it allows, as SQL
    :param high: and the greatest
    """
    rejected = "" if base == "backfill" else " AND f.rejected IS NOT TRUE"
    facts = f"(SELECT * FROM synrepl.{base} WHERE {in_range})"
    found = (
        f"SELECT f.room_id, f.redacts, e.origin_server_ts FROM {facts} AS f"
        " LEFT JOIN synrepl._rooms r ON r.room_id = f.room_id"
        " LEFT JOIN synrepl._room_events e ON e.event_id = f.redacts AND e.room_no = r.room_no"
        f" WHERE {_is_event(base)} AND f.redacts IS NOT NULL{rejected}"
        " AND (e.event_no IS NULL OR e.redacted_by IS NOT NULL)"
        " UNION SELECT r.room_id, d.redacts, e.origin_server_ts FROM synrepl._room_events s"
        " JOIN synrepl._redactions d ON d.redaction_no = s.event_no AND d.applied"
        " JOIN synrepl._rooms r ON r.room_no = d.room_no"
        " JOIN synrepl._room_events e ON e.event_id = d.redacts AND e.room_no = d.room_no"
        f" WHERE s.stream_id BETWEEN {low} AND {high}"
    )
    if base == "backfill":
        return found
    return (
        f"{found} UNION SELECT r.room_id, d.redacts, e.origin_server_ts FROM synrepl._room_heads h"
        " JOIN synrepl._rooms r ON r.room_no = h.room_no"
        " JOIN synrepl._redactions d ON d.room_no = h.room_no AND d.applied"
        " JOIN synrepl._room_events e ON e.event_id = d.redacts AND e.room_no = h.room_no"
        f" WHERE h.completed_stream_id BETWEEN {low} AND {high}"
    )


def _is_event(base: str) -> str:
    return "true" if base == "backfill" else "f.kind = 'ev'"


def base_of(stream: str, offered: Collection[str]) -> str:
    """The stream whose facts a stream has: itself, unless it is one of whole events.

    :param offered: the streams of whole events that the database has
    """
    return BASES[stream] if stream in offered else stream


def positions_of_facts(
    positions: Mapping[str, PositionVector], offered: Iterable[str]
) -> dict[str, PositionVector]:
    """The positions up to which facts are no longer needed, by the streams that have them.

    Where a stream is read with its whole events and without, that is the lower of both.

    :param offered: the streams of whole events among ``positions``
    """
    found = dict(positions)
    for stream in offered:
        if stream in found:
            base, at = BASES[stream], found.pop(stream)
            found[base] = common_position(found[base], at) if base in found else at
    return found


def common_position(one: PositionVector, other: PositionVector) -> PositionVector:
    """The position up to which both of two have come."""
    writers = {name: min(one[name], other[name]) for name in {*one.writers, *other.writers}}
    return PositionVector(writers, min(one.linear, other.linear))
