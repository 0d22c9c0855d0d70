"""Whether the database may have changed what differs between a row of whole events in a lake and its own.

A state can be said by several bases, and a redaction can be taken back. So where only these differ, the database is asked.
A base is chosen once, when the row is read: the newest prev event that may be one, otherwise the newest event that may
(:mod:`.landed_states`). In a room that was never completed, events only cease to be possible bases, since they are purged or their
facts are trimmed. So another base is explained only if the lake's is no possible one any more, and the database's would not have
been the better choice at the time.

Rows are read before the database is asked. An event that it no longer has by then, it has changed.
"""

from __future__ import annotations

from typing import NamedTuple

#: Number of rows to ask for at a time.
ROWS_AT_ONCE = 10_000


class DoubtfulRow(NamedTuple):
    """A row that differs from the lake's in what the database may have changed, and in nothing else.

    :ivar lake_base: the base in the lake, and
    :ivar source_base: the one in the database
    :ivar has_other_base: these differ
    :ivar may_be_taken_back: a redaction applies to the event in the lake, and none in the database
    """

    stream_id: int
    lake_base: int | None
    source_base: int | None
    has_other_base: bool
    may_be_taken_back: bool


def explained_sql(base: str) -> str:
    """A statement for the stream IDs of those rows that the database may have changed.

    Its parameters are arrays, of the fields of the rows.

    :param base: the stream of the facts
    """
    down = base == "backfill"
    is_event = "" if down else " AND b.kind = 'ev'"
    # Which events were possible bases before the last completion is not known: of those between two, only the ones between.
    may_be_any = f"h.completed_stream_id {'> 0' if down else '>= c.stream_id'}"
    is_trimmed = "abs(c.lake_base) <= t.trimmed"
    was_there = (
        f"abs(c.lake_base) < abs(c.stream_id) AND ({is_trimmed} OR EXISTS (SELECT FROM synrepl.{base} b"
        f" WHERE b.stream_id = c.lake_base AND b.room_id = r.room_id{is_event}))"
    )
    is_gone = (
        f"({is_trimmed} OR NOT EXISTS (SELECT FROM synrepl._room_events p WHERE p.stream_id = c.lake_base"
        " AND p.room_no = r.room_no AND p.group_after IS NOT NULL))"
    )
    is_better = (
        "abs(c.source_base) > abs(c.lake_base) AND EXISTS (SELECT FROM unnest(e.prev_nos) AS n (event_no)"
        " JOIN synrepl._room_events p ON p.event_no = n.event_no WHERE p.stream_id = c.source_base)"
    )
    return (
        "SELECT c.stream_id FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::boolean[], %s::boolean[])"
        " AS c (stream_id, lake_base, source_base, has_other_base, may_be_taken_back)"
        f" JOIN synrepl._streams t ON t.stream = '{base}'"
        " LEFT JOIN (synrepl._room_events e JOIN synrepl._rooms r ON r.room_no = e.room_no"
        f"  JOIN synrepl.{base} f ON f.stream_id = e.stream_id AND f.room_id = r.room_id)"
        "  ON e.stream_id = c.stream_id"
        " LEFT JOIN synrepl._room_heads h ON h.room_no = e.room_no"
        # It was there when the row was read: it was purged since, or its room is being forgotten.
        " WHERE e.event_no IS NULL OR ((NOT c.may_be_taken_back OR h.completed_stream_id > 0)"
        f" AND (NOT c.has_other_base OR CASE WHEN {may_be_any} THEN c.lake_base IS NULL OR ({was_there})"
        f"  ELSE {was_there} AND {is_gone} AND ({is_better}) IS NOT TRUE END))"
    )
