"""The part of a vector of which each room has the whole history up to there.

A room that was moved has events of two writers. A process may have applied those of the second one before the last ones of
the first, because it follows each writer by itself. What it told then would begin after what it lacks, and refer to it.
"""

from __future__ import annotations

from collections.abc import Collection

from synrepl.positions.vector import PositionVector
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.timelines.user_rooms import UserRoom
from synrepl.storage.rooms.visibility.covered_sql import (
    covered_params,
    covered_sql,
    not_covered_sql,
    writers_above,
)


def part_with_whole_history(
    txn: Transaction, rooms: Collection[UserRoom], upto: PositionVector
) -> PositionVector:
    """The largest part of a vector that covers no event of some rooms without those that came before it in its room."""
    while True:
        numbers = [e.room_no for e in rooms if max(e.newest, e.state_only) > upto.linear]
        if not numbers or not writers_above(upto):
            return upto
        first = _first_after_gaps(txn, numbers, upto)
        if not first:
            return upto
        writers = {
            writer: min(token, first.get(writer, token + 1) - 1)
            for writer, token in upto.writers.items()
        }
        # Without some events of one writer, later ones of another may be the first after a gap.
        upto = PositionVector({w: at for w, at in writers.items() if at > upto.linear}, upto.linear)


def _first_after_gaps(
    txn: Transaction, room_nos: Collection[int], upto: PositionVector
) -> dict[str, int]:
    """By writer, the first token that a vector covers although an earlier one of its room is not covered."""
    txn.execute(
        f"""
        SELECT f.writer, min(f.stream_id)
          FROM unnest(%(rooms)s::int[]) AS w (room_no)
         CROSS JOIN LATERAL (
               SELECT min(g.stream_id) AS stream_id FROM synrepl._room_events g
                WHERE g.room_no = w.room_no AND {not_covered_sql(upto, "upto", "g.stream_id")}) AS gap
         CROSS JOIN LATERAL (
               SELECT e.stream_id FROM synrepl._room_events e
                WHERE e.room_no = w.room_no AND e.stream_id > gap.stream_id
               UNION ALL
               SELECT h.state_stream_id FROM synrepl._room_heads h
                WHERE h.room_no = w.room_no AND h.state_stream_id > gap.stream_id) AS e
          JOIN synrepl.events f ON f.stream_id = e.stream_id
         WHERE {covered_sql(upto, "upto")} GROUP BY f.writer""",
        {"rooms": list(room_nos), **covered_params(upto, "upto")},
    )
    return {writer: int(token) for writer, token in txn.fetchall()}
