"""Imports the rooms of a real Synapse: room by room, verified, resumable, while the server runs.

The source is only read, in short transactions of one batch each. What was imported is recorded batch by
batch, so an import that was interrupted goes on where it was. Storing is idempotent, so at worst one
batch is stored twice. Memory holds one batch and bounded caches, however large a room is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from synrepl.core.errors import InputError
from synrepl.rooms import Keys, RoomVersion, UnknownRoomVersion, room_version
from synrepl.services.rooms.importing.audit import RoomAuditor
from synrepl.services.rooms.importing.audited import AuditedBatch
from synrepl.services.rooms.importing.findings import (
    MAX_LISTED,
    FindingKind,
    ImportCounts,
    ImportFinding,
    ImportReport,
)
from synrepl.services.rooms.importing.journal import ImportJournal, RoomProgress
from synrepl.services.rooms.importing.key_ring import KeyRing
from synrepl.services.rooms.importing.room_end import RoomEnd, audit_end, audit_unused_groups
from synrepl.services.rooms.importing.sink import LateEvents, RoomSink
from synrepl.storage.database import Transaction
from synrepl.storage.foreign.rooms.tables import (
    RoomTables,
    SourceRoom,
    count_events,
    locate_rooms,
    prefer_indexes,
    read_room,
    room_ids,
    rooms_with_events,
)
from synrepl.storage.foreign.store import ForeignStore

T = TypeVar("T")


class RoomNotAtSource(InputError):
    """the Synapse at the source has no event of {rooms}; nothing was imported: check the ID, or leave it out to import all rooms"""


#: Events, and state groups, of a batch.
BATCH = 500

#: Rooms whose IDs are read at once.
_ROOMS = 1000

PARTIAL = "the server has only partial state of it; it is imported when that is complete"


class ImportProgress(NamedTuple):
    """Progress of an import, for a progress bar.

    :ivar room: ordinal number of the room, from 1
    :ivar rooms: number of rooms
    :ivar done: events of the room that are imported
    :ivar events: events of the room
    """

    room_id: str
    room: int
    rooms: int
    done: int
    events: int


class RoomImporter:
    """Imports from one database.

    :param keys: keys of servers in addition to those in the database, such as the source's own
    :param batch: events of a batch
    """

    def __init__(
        self,
        source: ForeignStore,
        journal: ImportJournal,
        sink: RoomSink,
        keys: Keys | None = None,
        batch: int = BATCH,
    ) -> None:
        self._source = source
        self.journal = journal
        self._sink = sink
        self._given = keys or {}
        self._keys = KeyRing(self._given)
        self._batch = batch

    async def run(
        self,
        rooms: Collection[str] | None = None,
        on_progress: Callable[[ImportProgress], object] = lambda progress: None,
    ) -> ImportReport:
        """Import rooms, or go on with it.

        :param rooms: their IDs; by default all rooms of the server
        :returns: everything that was recorded of the source, also before
        :raises NotSynapse: it is no database of a Synapse
        :raises RoomTablesUnknown: of a release that is not known
        :raises MayNotRead: this user may not read its rooms
        :raises RoomNotAtSource: one of the given rooms is not there
        """
        tables = await self._source.read("locate rooms", locate_rooms)
        wanted = await self._room_ids() if rooms is None else await self._present(rooms)
        for number, room_id in enumerate(wanted, 1):
            report = partial(_report_room, on_progress, room_id, number, len(wanted))
            await self.import_room(tables, room_id, report)
        return await self.journal.report(MAX_LISTED)

    async def retry(
        self,
        rooms: Collection[str] | None = None,
        on_progress: Callable[[ImportProgress], object] = lambda progress: None,
    ) -> int:
        """Verify imported rooms once more from their beginning, and import what can be imported now.

        What was recorded of a room is replaced when all of it was verified. A retry that was interrupted
        goes on where it was. Events that are stored stay as they are; those that are imported now are older
        than what is stored, and go into the stream ``backfill``.

        :param rooms: their IDs; by default those with findings, with events in quarantine, or with
            signatures that could not be checked
        :returns: the number of rooms
        :raises RoomNotAtSource: one of the given rooms is not there
        """
        tables = await self._source.read("locate rooms", locate_rooms)
        wanted = await self._imperfect() if rooms is None else await self._present(rooms)
        journal = self.journal.of_retry()
        for number, room_id in enumerate(wanted, 1):
            before = await self.journal.room(room_id)
            again = RoomImporter(
                self._source,
                journal,
                LateEvents(self._sink, before.position),
                self._given,
                self._batch,
            )
            report = partial(_report_room, on_progress, room_id, number, len(wanted))
            if (await again.import_room(tables, room_id, report)).finished:
                await self.journal.replace(room_id, journal)
        return len(wanted)

    async def import_room(
        self,
        tables: RoomTables,
        room_id: str,
        on_progress: Callable[[int, int], object] = lambda done, events: None,
    ) -> RoomProgress:
        """Import one room, or go on with it.

        :param on_progress: is called with the events imported, and the events of the room
        """
        progress = await self.journal.room(room_id)
        if progress.finished:
            return progress
        room = await self.read(lambda txn: read_room(txn, tables, room_id))
        progress.left_out, version = why_left_out(room)
        if version is None:
            findings = []
            if not room.is_partial:
                found = ImportFinding(FindingKind.NO_VERSION, room_id, theirs=room.version)
                progress.counts.findings[found.kind.value] = 1
                findings.append(found)
            await self.journal.record(room_id, progress, findings)
            return progress
        auditor = RoomAuditor(room_id, version, self._keys)
        events = await self.read(lambda txn: count_events(txn, room_id))
        while True:
            on_progress(progress.counts.events, events)
            after = progress.position
            batch = await self.read(lambda txn: auditor.next_batch(txn, after, self._batch))  # noqa: B023
            if batch.last is None:
                break
            progress.position = batch.last
            await self.store(auditor, batch, progress)
        await self._finish(auditor, progress)
        return progress

    async def store(
        self, auditor: RoomAuditor, batch: AuditedBatch, progress: RoomProgress
    ) -> None:
        """Store a verified batch, and record it."""
        findings = list(batch.findings)
        counts = batch.counts
        if batch.events:
            refused = await self._sink.store(auditor.room_id, auditor.version, batch.events)
            for event_id, reason in refused.items():
                findings.append(
                    ImportFinding(FindingKind.NOT_STORED, auditor.room_id, event_id, ours=reason)
                )
                name = FindingKind.NOT_STORED.value
                counts.findings[name] = counts.findings.get(name, 0) + 1
        progress.counts.add(counts)
        await self.journal.record(auditor.room_id, progress, findings, batch.quarantined)

    async def _finish(self, auditor: RoomAuditor, progress: RoomProgress) -> None:
        """Verify what the source has of a room besides its events."""
        group: int | None = progress.group
        while group is not None:
            after = group
            page = await self.read(
                lambda txn: audit_unused_groups(auditor, txn, after, self._batch)  # noqa: B023
            )
            group = page.last
            if group is not None:
                progress.group = group
                progress.counts.add(page.counts)
                await self.journal.record(auditor.room_id, progress, page.findings)
        end = await self.read(lambda txn: audit_end(auditor, txn))
        findings = [
            *end.findings,
            *await self._compare_ends(auditor.room_id, end, progress.counts),
        ]
        for finding in findings:
            name = finding.kind.value
            progress.counts.findings[name] = progress.counts.findings.get(name, 0) + 1
        progress.finished = True
        await self.journal.record(auditor.room_id, progress, findings)

    async def _compare_ends(
        self, room_id: str, end: RoomEnd, counts: ImportCounts
    ) -> Sequence[ImportFinding]:
        """Name forward extremities that only one side has.

        Nothing is compared where events arrived at the source since the last batch, which are followed,
        or where events could not be imported.
        """
        ours = set(await self._sink.forward_extremities(room_id))
        theirs = set(end.forward_extremities)
        if not ours or end.events != counts.events or not counts.is_complete:
            return []
        column = "event_forward_extremities"
        return [
            ImportFinding(
                FindingKind.EXTREMITY,
                room_id,
                each,
                column=column,
                theirs=each if each in theirs else None,
                ours=each if each in ours else None,
            )
            for each in sorted(theirs ^ ours)
        ]

    async def stored(self, event_ids: Collection[str]) -> Collection[str]:
        """See :meth:`.RoomSink.stored`."""
        return await self._sink.stored(event_ids)

    def auditor(self, room: SourceRoom) -> RoomAuditor | None:
        """Verifies a room; None for one that cannot be imported."""
        _, version = why_left_out(room)
        return None if version is None else RoomAuditor(room.room_id, version, self._keys)

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run ``work`` in a read-only transaction on the source."""

        def indexed(txn: Transaction) -> T:
            prefer_indexes(txn)
            return work(txn)

        return await self._source.read("import rooms", indexed)

    async def _present(self, rooms: Collection[str]) -> list[str]:
        """Given rooms, all of which the source must have."""
        storable = [each for each in rooms if _is_storable(each)]
        found = await self.read(lambda txn: rooms_with_events(txn, storable))
        absent = sorted(set(rooms) - found)
        if absent:
            raise RoomNotAtSource(rooms=", ".join(absent))
        return sorted(found)

    async def _room_ids(self) -> list[str]:
        return await _all_pages(lambda after: self.read(lambda txn: room_ids(txn, after, _ROOMS)))

    async def _imperfect(self) -> list[str]:
        return await _all_pages(lambda after: self.journal.imperfect_rooms(after, _ROOMS))


def _is_storable(text: str) -> bool:
    """Whether PostgreSQL can have such text; an argument of a command may be no UTF-8."""
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)


async def _all_pages(page_after: Callable[[str], Awaitable[list[str]]]) -> list[str]:
    found: list[str] = []
    page = await page_after("")
    while page:
        found += page
        page = await page_after(found[-1])
    return found


def _report_room(
    on_progress: Callable[[ImportProgress], object],
    room_id: str,
    room: int,
    rooms: int,
    done: int,
    events: int,
) -> None:
    on_progress(ImportProgress(room_id, room, rooms, done, events))


def why_left_out(room: SourceRoom) -> tuple[str | None, RoomVersion | None]:
    """Why a room cannot be imported, or its version."""
    if room.is_partial:
        return PARTIAL, None
    if room.version is None:
        return "neither the server nor m.room.create states its version", None
    try:
        return None, room_version(room.version)
    except UnknownRoomVersion as error:
        return str(error), None
