"""Where an import puts the rooms: the interface of a room store to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from synrepl.rooms import CompactStateMap, Event, Judged, RoomVersion, StateMap
from synrepl.storage.foreign.rooms.events import RoomPosition


class ImportedEvent(msgspec.Struct, frozen=True, eq=False):
    """An event to store, which was verified and judged.

    :ivar judged: the verdict by the rules, with the states before and after it
    :ivar position: its orderings at the source; of a file, its depth and line
    :ivar outlier: whether it is stored only because others cite it
    :ivar backfilled: whether the source fetched it after newer ones, while it was followed
    :ivar soft_failed: whether the source soft-failed it, which depends on when it arrived there
    :ivar state_before: the state before it; given where a prev event is not imported, so that the store
        cannot derive it
    """

    event: Event
    judged: Judged[CompactStateMap]
    position: RoomPosition
    outlier: bool = False
    backfilled: bool = False
    soft_failed: bool = False
    state_before: StateMap | None = None

    @property
    def rejected(self) -> bool:
        """Whether the rules reject it."""
        return self.judged.refusal is not None


class RoomSink(Protocol):
    """A store that rooms are imported into.

    Storing an event again changes nothing, so a batch may be repeated.
    """

    async def store(
        self, room_id: str, version: RoomVersion, events: Sequence[ImportedEvent]
    ) -> Mapping[str, str]:
        """Store events of one room, causes first, in one or several transactions.

        :returns: by event ID, why it was not stored, or how the store's verdict differs
        """
        ...

    async def stored(self, event_ids: Collection[str]) -> Collection[str]:
        """Those of the events that are stored with their state, so that storing them again is of no use."""
        ...

    async def forward_extremities(self, room_id: str) -> Sequence[str]:
        """The forward extremities of a stored room; empty if there is no such room."""
        ...


class LateEvents:
    """A sink for what an earlier import left out: events up to where it was go into the stream ``backfill``.

    Implements :class:`RoomSink`.

    :param upto: how far the earlier import was
    """

    def __init__(self, sink: RoomSink, upto: RoomPosition) -> None:
        self._sink = sink
        self._upto = upto

    async def store(
        self, room_id: str, version: RoomVersion, events: Sequence[ImportedEvent]
    ) -> Mapping[str, str]:
        """See :meth:`RoomSink.store`."""
        late = [
            replace(each, backfilled=True)
            if each.position <= self._upto and not each.outlier
            else each
            for each in events
        ]
        return await self._sink.store(room_id, version, late)

    async def stored(self, event_ids: Collection[str]) -> Collection[str]:
        """See :meth:`RoomSink.stored`."""
        return await self._sink.stored(event_ids)

    async def forward_extremities(self, room_id: str) -> Sequence[str]:
        """See :meth:`RoomSink.forward_extremities`."""
        return await self._sink.forward_extremities(room_id)
