"""Entries of the current states of many rooms, found by patterns of types and state keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from synrepl.rooms import StateKey
from synrepl.storage.database import Transaction, planned
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.rooms.timelines.room_entries import Boundary

#: Number of the room, type and state key; None stands for any.
SelectedEntry = tuple[int, str | None, str | None]


def selected_entries(
    txn: Transaction, wanted: Collection[SelectedEntry]
) -> dict[int, dict[StateKey, int]]:
    """The numbers of state events by room and key, of those that match any pattern of their room.

    A pattern with a type is a look-up in an index; others go through all keys of the room.
    """
    clean = [each for each in wanted if "\0" not in (each[1] or "") + (each[2] or "")]
    found: dict[int, dict[StateKey, int]] = {number: {} for number, _, _ in wanted}
    parts, params = [], dict[str, object]()
    for name, on, chosen in (
        ("exact", "k.type = w.type AND k.state_key = w.state_key", _with(clean, (True, True))),
        ("types", "k.type = w.type", _with(clean, (True, False))),
        ("keys", "k.state_key = w.state_key", _with(clean, (False, True))),
        ("all", "true", _with(clean, (False, False))),
    ):
        if chosen:
            parts.append(_part(name, on))
            params |= {
                f"{name}_rooms": array_text([number for number, _, _ in chosen]),
                f"{name}_types": array_text([kind or "" for _, kind, _ in chosen]),
                f"{name}_keys": array_text([key or "" for _, _, key in chosen]),
            }
    if not parts:
        return found
    txn.execute(planned(" UNION ALL ".join(parts)), params)
    for number, kind, state_key, event_no in txn.fetchall():
        found[number][kind, state_key] = event_no
    return found


def _part(name: str, on: str) -> str:
    return (
        "SELECT k.room_no, k.type, k.state_key, c.event_no"
        f" FROM unnest(%({name}_rooms)s::int[], %({name}_types)s::text[], %({name}_keys)s::text[])"
        " AS w (room_no, type, state_key)"
        f" JOIN synrepl._room_keys k ON k.room_no = w.room_no AND {on}"
        " JOIN synrepl._current_state c ON c.room_no = k.room_no AND c.slot = k.slot"
    )


def _with(wanted: Sequence[SelectedEntry], named: tuple[bool, bool]) -> list[SelectedEntry]:
    """The patterns that name a type and a state key, or do not."""
    return [each for each in wanted if (each[1] is not None, each[2] is not None) == named]


def boundaries_after(txn: Transaction, rooms: Sequence[tuple[int, int]]) -> dict[int, Boundary]:
    """The first event of each room after a stream ordering; rooms without one are left out.

    :param rooms: numbers and stream orderings
    """
    if not rooms:
        return {}
    numbers, after = (list(each) for each in zip(*rooms, strict=True))
    txn.execute(
        "SELECT w.room_no, e.stream_id, e.group_before FROM unnest(%s::int[], %s::bigint[])"
        " AS w (room_no, after) CROSS JOIN LATERAL (SELECT e.stream_id, e.group_before"
        "  FROM synrepl._room_events e WHERE e.room_no = w.room_no AND e.stream_id > w.after"
        "  AND e.stream_id > 0 ORDER BY e.stream_id LIMIT 1) AS e",
        (numbers, after),
    )
    return {row[0]: Boundary(row[1], row[2]) for row in txn.fetchall()}


def state_keys_of(
    txn: Transaction, slots: Collection[tuple[int, int]]
) -> dict[tuple[int, int], str]:
    """The state keys of slots, by number of the room and slot."""
    if not slots:
        return {}
    txn.execute(
        "SELECT k.room_no, k.slot, k.state_key FROM unnest(%s::int[], %s::int[]) AS w (room_no, slot)"
        " JOIN synrepl._room_keys k USING (room_no, slot)",
        ([number for number, _ in slots], [slot for _, slot in slots]),
    )
    return {(int(number), int(slot)): str(key) for number, slot, key in txn.fetchall()}
