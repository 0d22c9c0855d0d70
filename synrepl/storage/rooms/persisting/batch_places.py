"""The places of a batch's events along the main line; see :mod:`synrepl.storage.rooms.visibility.event_places`."""

from __future__ import annotations

from synrepl.storage.rooms.persisting.batch import RoomBatch
from synrepl.storage.rooms.tables.events import StoredEvent
from synrepl.storage.rooms.tables.numbers import keys_of
from synrepl.storage.rooms.tables.pending_rows import PendingRows
from synrepl.storage.rooms.visibility.event_places import BRANCHES_TABLE, PlacedEvent, event_places


def place_row(batch: RoomBatch, row: StoredEvent, rows: PendingRows) -> StoredEvent:
    """The row of an event, with its place. Call it in the stream ordering, once tokens are reserved."""
    memory = batch.memory
    if memory.places is None:
        memory.places = event_places(batch.txn, batch.room.room_no)
    if (
        row.group_before is None
        or row.group_after is None
        or row.stream_id is None
        or row.topological is None
        or row.audience is None
    ):
        return row
    if row.stream_id > 0 and memory.places.is_next(row.group_after, row.topological):
        return row
    at = batch.states.line_place(row.group_after)
    event = PlacedEvent(
        row.stream_id > 0,
        row.topological,
        row.slot,
        row.group_before,
        row.group_after,
        at.line_no == memory.groups.main_line,
        at.pos,
        at.overlay.keys(),
    )
    place = memory.places.place(event, _RelevantSlots(batch))
    if not place.bits:
        return row
    for slot in place.different:
        rows.add(
            BRANCHES_TABLE,
            (batch.room.room_no, slot, row.topological, row.stream_id, row.event_no),
        )
    return row._replace(audience=row.audience | place.bits, reach=place.reach)


class _RelevantSlots:
    """The slots of memberships, and of the history visibility."""

    def __init__(self, batch: RoomBatch) -> None:
        self._batch = batch

    def __contains__(self, slot: object) -> bool:
        assert isinstance(slot, int)
        keys = self._batch.memory.keys
        if slot not in keys:
            for found, key in keys_of(self._batch.txn, self._batch.room.room_no, [slot]).items():
                self._batch.memory.name_slot(found, key)
        kind, state_key = keys[slot]
        return kind == "m.room.member" or (kind == "m.room.history_visibility" and state_key == "")
