"""Persists a batch of events of one room: opens the room, judges the events, and has everything written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from synrepl.rooms import RoomVersion, room_version
from synrepl.storage.database import Record, Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.persisting.batch import RoomBatch
from synrepl.storage.rooms.persisting.batch_rows import RoomBatchWriter
from synrepl.storage.rooms.persisting.limits import DEFAULT_LIMITS, RoomLimits
from synrepl.storage.rooms.persisting.room_memory import RoomMemories, RoomMemory
from synrepl.storage.rooms.tables.incoming import (
    EventOutcome,
    IncomingEvent,
    PersistedBatch,
    PersistedEvent,
)
from synrepl.storage.rooms.tables.numbers import (
    NumberWithoutRow,
    OpenedRoom,
    OtherRoomVersion,
    RoomRevision,
    find_room,
    make_room,
    open_room,
    reopened,
    reopening,
)
from synrepl.storage.rooms.tables.pending_rows import PendingRows
from synrepl.storage.short_work import Opening, ShortWork

#: Gets the rows of a transaction, the number of the room, and the outcomes of the given events, before anything is written.
#: It adds rows, or raises so that nothing is written.
AlsoWrite = Callable[[PendingRows, int, Sequence[PersistedEvent]], object]


class RoomNotAsRemembered(Exception):
    """The room is locked, or another process has changed it: persist without reserving tokens early."""


class PersistRun(ShortWork["PersistRun"]):
    """One run of persisting a batch, as a work function.

    The work may run several times; what counts is the last run, whose :attr:`memory` is put back when it
    is known to be committed.

    :param room_nos: numbers of rooms by ID, as far as they are known
    :param released_by: events that were persisted before, and that others wait for
    :param reserves_early: whether it may reserve tokens in its first round trip
    :param also: adds what else is written in the transaction
    """

    def __init__(
        self,
        room_id: str,
        version: str,
        incoming: Sequence[IncomingEvent],
        memories: RoomMemories,
        room_nos: Mapping[str, int],
        limits: RoomLimits = DEFAULT_LIMITS,
        released_by: Sequence[str] = (),
        reserves_early: bool = True,
        also: AlsoWrite | None = None,
    ) -> None:
        self._reserves_early = reserves_early
        self._also = also
        self._room_id = room_id
        self._version: RoomVersion = room_version(version)
        self._incoming = incoming
        self._new_ids = [each for each in map(_event_id, incoming) if "\0" not in each]
        self._memories = memories
        self._room_nos = room_nos
        self._limits = limits
        self._released_by = released_by
        self.memory: RoomMemory | None = None

    def __call__(self, txn: Transaction, outbox: Outbox) -> PersistRun:
        """Judge the batch and write everything but what needs tokens, which follows once they are reserved.

        :raises OtherRoomVersion: the room is stored with another version
        :raises RoomNotAsRemembered: it is to be run again, and to reserve tokens after the work
        """
        early = self._early_opening(outbox)
        if early is None:
            return self._persist(txn, outbox, self._open(txn, self._new_ids))
        return self.finish(txn, outbox, txn.execute(*early).fetchone_or_none())

    def opening(self, outbox: Outbox) -> Opening | None:
        """Open the room if the batch is one event, and judging it needs nothing that is not in memory."""
        memory = self._memories.remembered(self._room_id)
        if memory is None or len(self._incoming) != 1 or not self._reserves_early:
            return None
        is_short = memory.has_what_judging_needs(self._incoming[0].event, self._version)
        return self._early_opening(outbox) if is_short else None

    def finish(self, txn: Transaction, outbox: Outbox, row: Record | None) -> PersistRun:
        """Judge the event, given the row of the opening.

        :raises RoomNotAsRemembered: the room is locked, or was changed
        """
        assert outbox.early is not None
        if row is None:
            raise RoomNotAsRemembered
        return self._persist(txn, outbox, reopened(row, outbox.early))

    def _early_opening(self, outbox: Outbox) -> Opening | None:
        """Open the room as it is remembered, and reserve tokens, if the event can be judged without delay.

        That is so if it follows the only forward extremity, so that there is no state to resolve, and if no event
        waits for it.
        """
        memory = self._memories.remembered(self._room_id)
        if memory is None or len(self._new_ids) != 1 or not self._reserves_early:
            return None
        (incoming,) = self._incoming
        if not (memory.is_followed_by(incoming.event) and incoming.is_just_sent):
            return None
        tokens = outbox.reserve_early()
        if tokens is None:
            return None
        room = RoomRevision(memory.room_no, memory.epoch, memory.revision)
        groups = 0 if incoming.event.state_key is None else 1
        return reopening(room, incoming.event.event_id, groups, tokens)

    def _persist(self, txn: Transaction, outbox: Outbox, opened: OpenedRoom) -> PersistRun:
        self.memory = None
        room = opened.room
        if room.version != self._version.name:
            raise OtherRoomVersion(
                room_id=self._room_id, stored=room.version, given=self._version.name
            )
        memory = self._memories.take(self._room_id, room.room_no, room.epoch, room.revision)
        batch = RoomBatch(txn, opened, self._version, memory, self._limits)
        batch.view.note_absent(set(self._new_ids) - opened.known)
        incoming = self._arrived(batch)
        batch.prefetch(incoming, self._released_by)
        batch.take_in_ready()
        given = self._take_in(batch, incoming)
        writer = RoomBatchWriter(batch, self._limits.max_waiting)
        self._check(batch, given)
        if writer.changes_something:
            writer.write(outbox)
            memory.revision = room.revision + 1
        else:
            batch.rows.flush(txn)
        self.memory = memory
        self._writer = writer
        self._given = given
        return self

    def _arrived(self, batch: RoomBatch) -> Sequence[IncomingEvent]:
        """The events to persist; overridden where they are built on the room as it is."""
        return self._incoming

    def _take_in(self, batch: RoomBatch, incoming: Sequence[IncomingEvent]) -> list[PersistedEvent]:
        """Judge the events; overridden where the states before them come in another way."""
        return [batch.take_in(each) for each in incoming]

    def _check(self, batch: RoomBatch, given: Sequence[PersistedEvent]) -> None:
        """Check the outcomes before anything is written; an error changes nothing."""
        if self._also is not None:
            self._also(batch.rows, batch.room.room_no, given)

    def _open(self, txn: Transaction, new_ids: Sequence[str]) -> OpenedRoom:
        """Lock the room, which is made if it is not here, or not any more."""
        groups = sum(each.event.state_key is not None for each in self._incoming)
        room_no = self._room_nos.get(self._room_id)
        while True:
            if room_no is None:
                found = find_room(txn, self._room_id)
                room_no = (
                    make_room(txn, self._room_id, self._version.name)
                    if found is None
                    else found.room_no
                )
            try:
                opened = open_room(txn, room_no, new_ids, groups)
            except NumberWithoutRow:
                room_no = None
                continue
            if opened.room.room_id == self._room_id:
                return opened
            room_no = None  # it is being forgotten

    @property
    def result(self) -> PersistedBatch:
        """The outcome of the batch; complete once the tokens were reserved."""
        writer, given = self._writer, self._given
        judged = {each.row.event_id: each.outcome() for each in writer.batch.pending()}
        memory = self.memory
        assert memory is not None
        return PersistedBatch(
            writer.batch.room.room_no,
            memory.revision,
            [self._now(each, judged) for each in given],
            list(judged.values()),
            writer.batch.has_ready,
        )

    @staticmethod
    def _now(given: PersistedEvent, judged: Mapping[str, PersistedEvent]) -> PersistedEvent:
        """The outcome of an event at the end of the batch: one that waited may have been judged."""
        if given.error is not None or given.outcome is EventOutcome.KNOWN:
            return given
        return judged.get(given.event_id, given)


def _event_id(incoming: IncomingEvent) -> str:
    return incoming.event.event_id
