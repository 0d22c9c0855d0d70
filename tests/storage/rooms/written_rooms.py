"""Rooms written into the tables as a persister writes them, of events that nobody judged.

So a test can have any graph and any states, also such as the rules would never lead to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from synrepl.rooms import (
    Event,
    EventAudience,
    EventOrdering,
    StateKey,
    audience_of,
    event_of,
    room_version,
)
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.state_line import LineWriter
from synrepl.storage.rooms.tables.events import checksum
from synrepl.storage.rooms.tables.pending_rows import PendingRows, RoomTable
from synrepl.storage.rooms.visibility.audience import pack_audience, pack_unseen
from synrepl.storage.rooms.visibility.event_places import BRANCHES_TABLE, EventPlaces, PlacedEvent

V10 = room_version("10")

State = Mapping[StateKey, Event]

_EVENTS = RoomTable(
    "synrepl._room_events",
    "event_no, stream_id, topological, depth, origin_server_ts, group_before, group_after, room_no,"
    " type_no, slot, audience, flags, event_id, sender, prev_nos, auth_nos, reach, redacted_by",
)
_KEYS = RoomTable("synrepl._room_keys", "room_no, slot, type, state_key")
_JSON = RoomTable("synrepl._room_event_json", "event_no, checksum, raw")
_ROOMS = RoomTable("synrepl._rooms", "room_no, room_id, version, slots, main_line")


@dataclass(slots=True)
class WrittenEvent:
    """An event and what is known about it.

    :ivar audience: None if nobody may see it
    """

    number: int
    event: Event
    before: State
    after: State
    ordering: EventOrdering | None
    audience: EventAudience | None
    flags: int
    group_before: int | None
    group: int | None
    packed: int
    reach: int | None
    prevs: Sequence[WrittenEvent] = ()
    redacted_by: int | None = None


@dataclass
class WrittenRoom:
    """A room whose rows are collected, and then written at once.

    :ivar max_overlay: see :data:`synrepl.storage.rooms.states.state_line.MAX_OVERLAY`
    """

    room_id: str = "!room:a.example"
    room_no: int = 1
    version: Any = V10
    first_number: int = 1
    max_overlay: int = 2
    rows: PendingRows = field(default_factory=PendingRows)
    events: list[WrittenEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._slots: dict[StateKey, int] = {}
        self._states: dict[int, dict[StateKey, Event]] = {}
        self._numbers: dict[str, int] = {}
        self._next_group = self._next_event = self.first_number
        self._next_line = self.first_number
        self._streams = [self.first_number, -self.first_number]
        self._lines: dict[int, Any] = {}
        self._places: dict[int, Any] = {}
        self._writer = LineWriter(self.room_no, None, self._lines, self._places, self._new_line)
        self._order = EventPlaces()

    def _new_line(self) -> int:
        self._next_line += 1
        return self._next_line - 1

    def _whole(self, group: int) -> dict[int, int]:
        return {
            self.slot(key): self._numbers[each.event_id]
            for key, each in self._states[group].items()
        }

    def slot(self, key: StateKey) -> int:
        """The slot of a key, which is made if there is none."""
        if key not in self._slots:
            self._slots[key] = len(self._slots)
        return self._slots[key]

    def event(
        self,
        kind: str,
        content: Mapping[str, Any],
        sender: str = "@a:x",
        key: str | None = None,
    ) -> Event:
        """An event that the room does not have yet."""
        fields: dict[str, Any] = {
            "type": kind,
            "sender": sender,
            "room_id": self.room_id,
            "content": dict(content),
            "depth": 1,
            "origin_server_ts": self._next_event,
            "prev_events": [],
            "auth_events": [],
            "hashes": {"sha256": ""},
        }
        return event_of(fields if key is None else {**fields, "state_key": key}, self.version)

    def outlier(self, event: Event) -> WrittenEvent:
        """Add an event without its state."""
        return self._keep(event, {}, {}, None, 1, (), None)

    def add(
        self,
        event: Event,
        *prevs: WrittenEvent,
        before: State | None = None,
        flags: int = 0,
        backfilled: bool = False,
        topological: int | None = None,
    ) -> WrittenEvent:
        """Add an event.

        :param before: the state before it; by default that after the first of ``prevs``
        :param backfilled: whether it gets a place in the history, before all that were backfilled
        """
        before = (prevs[0].after if prevs else {}) if before is None else before
        key = None if event.state_key is None else (event.type, event.state_key)
        after = {**before, key: event} if key is not None and not flags & 2 else before
        if topological is None:
            known = [each.ordering.topological for each in prevs if each.ordering is not None]
            topological = max(known, default=0) + 1
        self._streams[backfilled] += -1 if backfilled else 1
        ordering = EventOrdering(topological, self._streams[backfilled])
        return self._keep(event, before, after, ordering, flags, prevs, backfilled)

    def _keep(
        self,
        event: Event,
        before: State,
        after: State,
        ordering: EventOrdering | None,
        flags: int,
        prevs: Sequence[WrittenEvent],
        backfilled: bool | None,
    ) -> WrittenEvent:
        number = self._numbers[event.event_id] = self._next_event
        self._next_event += 1
        audience, packed = None, pack_unseen(event)
        if not flags & 3:
            audience = audience_of(event, before, soft_failed=bool(flags & 4))
            packed = pack_audience(event, audience)
        group, reach = None, None
        group_before = None
        if ordering is not None:
            bases = [each.group for each in prevs if each.group is not None]
            group_before = self._group(before, bases)
            group = self._group(after, [group_before])
            line_place = self._places[group]
            place = self._order.place(
                PlacedEvent(
                    not backfilled,
                    ordering.topological,
                    None if event.state_key is None else self.slot((event.type, event.state_key)),
                    group_before,
                    group,
                    line_place.line_no == self._writer.main_line,
                    line_place.pos,
                    line_place.overlay,
                ),
                self,
            )
            packed |= place.bits
            reach = place.reach
            for slot in place.different:
                self.rows.add(BRANCHES_TABLE, (self.room_no, slot, *ordering, number))
        kept = WrittenEvent(
            number,
            event,
            before,
            after,
            ordering,
            audience,
            flags,
            group_before,
            group,
            packed,
            reach,
            prevs,
        )
        self.events.append(kept)
        return kept

    def __contains__(self, slot: object) -> bool:
        """Whether a slot is of a membership, or of the history visibility."""
        key = next(key for key, each in self._slots.items() if each == slot)
        return key[0] == "m.room.member" or key == ("m.room.history_visibility", "")

    def _group(self, state: State, bases: Sequence[int]) -> int:
        """The group of a state, which is made if there is none near by."""
        for base in bases:
            if self._states[base] == state:
                return base
        group, self._next_group = self._next_group, self._next_group + 1
        self._states[group] = dict(state)
        if not bases:
            if self._writer.main_line is None:
                whole = {
                    self.slot(key): self._numbers[each.event_id] for key, each in state.items()
                }
                self._writer.first(self.rows, group, whole)
                return group
            bases = [min(self._states)]
        base_state = self._states[bases[0]]
        change: dict[int, int | None] = {
            self.slot(key): self._numbers[each.event_id]
            for key, each in state.items()
            if base_state.get(key) is not each
        }
        change |= {self.slot(key): None for key in base_state if key not in state}
        with patch("synrepl.storage.rooms.states.state_line.MAX_OVERLAY", self.max_overlay):
            self._writer.add(self.rows, group, bases[0], change, self._whole)
        return group

    def write(self, txn: Transaction) -> None:
        """Write everything into empty tables."""
        self._writer.finish(self.rows)
        types = dict(
            txn.execute("SELECT type, type_no FROM synrepl._event_types").fetchall()  # type: ignore[arg-type]
        )
        for kept in self.events:
            event, ordering = kept.event, kept.ordering
            if event.type not in types:
                types[event.type] = txn.execute(
                    "INSERT INTO synrepl._event_types (type) VALUES (%s) RETURNING type_no",
                    (event.type,),
                ).fetchone()[0]
            key = None if event.state_key is None else (event.type, event.state_key)
            self.rows.add(
                _EVENTS,
                (
                    kept.number,
                    None if ordering is None else ordering.stream,
                    None if ordering is None else ordering.topological,
                    event.depth,
                    event.origin_server_ts,
                    kept.group_before,
                    kept.group,
                    self.room_no,
                    types[event.type],
                    None if key is None else self.slot(key),
                    kept.packed,
                    kept.flags,
                    event.event_id,
                    event.sender,
                    [each.number for each in kept.prevs],
                    [],
                    kept.reach,
                    kept.redacted_by,
                ),
            )
            check = checksum(event.event_id, event.raw)
            self.rows.add(_JSON, (kept.number, check, event.raw))
        for (kind, state_key), slot in self._slots.items():
            self.rows.add(_KEYS, (self.room_no, slot, kind, state_key))
        main_line = self._writer.main_line
        self.rows.add(_ROOMS, (self.room_no, self.room_id, "10", len(self._slots), main_line))
        self.rows.flush(txn)
