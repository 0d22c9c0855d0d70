"""Keeps an import current: follows the streams of the source after its rooms were copied.

Streams are read up to what the server has allocated, so that a new event is imported as soon as it is
committed. What is recorded is how far they are *settled*, so what is above is read again, and nothing
that commits late is missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from synrepl.core.clock import Scheduler
from synrepl.core.tokens import Range
from synrepl.services.rooms.importing.audit import RoomAuditor
from synrepl.services.rooms.importing.findings import ImportCounts, ImportFinding, ImportReport
from synrepl.services.rooms.importing.importer import PARTIAL, RoomImporter
from synrepl.services.rooms.importing.journal import ImportJournal, RoomProgress
from synrepl.storage.foreign.bounds import SETTLE_S, ForeignBounds
from synrepl.storage.foreign.rooms.events import SourceEvent, events_by_id
from synrepl.storage.foreign.rooms.tables import RoomTables, locate_rooms, read_room
from synrepl.storage.foreign.store import ForeignStore
from synrepl.storage.rooms.tables.imports import RecordedSource
from synrepl.streams.definition import Fact
from synrepl.streams.synapse.backfill import BACKFILL, BackfillRow
from synrepl.streams.synapse.events import EVENTS, EventRow

#: Facts that are read, and events that are imported, at once.
_PAGE = 500

#: Events above the settled position that are known to be imported.
_MAX_DONE = 20_000

#: Rooms whose state groups and events are remembered between two rounds.
_MAX_ROOMS = 64

#: Seconds between two observations while the start is determined.
_LOOK_EVERY_S = 0.5

#: Longest wait for transactions that were open at the start, in seconds.
START_WITHIN_S = 60.0


class FollowsEvents(Protocol):
    """Is told what following does."""

    def imported(self, counts: ImportCounts, findings: Sequence[ImportFinding]) -> None:
        """Events were imported."""


class RoomFollower:
    """Follows the streams ``events`` and ``backfill`` of a source.

    Call :meth:`begin` before the rooms are copied, and :meth:`poll` again and again afterwards.

    :param settle_s: see :class:`.ForeignBounds`
    """

    def __init__(
        self,
        scheduler: Scheduler,
        source: ForeignStore,
        importer: RoomImporter,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._scheduler = scheduler
        self._source = source
        self._importer = importer
        self._journal: ImportJournal = importer.journal
        self._bounds = {
            EVENTS.name: ForeignBounds(settle_s),
            BACKFILL.name: ForeignBounds(settle_s),
        }
        self._done: dict[tuple[int, str], None] = {}
        self._auditors: dict[str, RoomAuditor] = {}

    async def begin(self) -> RecordedSource:
        """Record from where on to follow; on later calls, return what is recorded.

        Waits for transactions that are under way, because their events may be copied or not.
        """
        recorded = await self._journal.positions()
        if recorded is not None:
            return recorded
        goal, settled = await self._observe()
        deadline = self._scheduler.seconds() + START_WITHIN_S
        while not _reached(settled, goal) and self._scheduler.seconds() < deadline:
            await self._scheduler.sleep(_LOOK_EVERY_S)
            _, settled = await self._observe()
        await self._journal.record_positions(settled)
        return settled

    async def poll(self) -> ImportReport:
        """Import everything that is new; returns what was imported."""
        position = await self.begin()
        report = ImportReport.empty()
        tables = await self._importer.read(locate_rooms)
        await self._complete_partial_rooms(tables)
        last, settled = await self._observe()
        for stream, since, upto in (
            (EVENTS, position.events, last.events),
            (BACKFILL, position.backfill, last.backfill),
        ):
            while since < upto:
                page = await self._source.page(stream, Range(since, upto), None, _PAGE)
                await self._import_facts(tables, page.facts, report)
                since = page.upto
        await self._journal.record_positions(
            RecordedSource(
                max(position.events, settled.events), max(position.backfill, settled.backfill)
            )
        )
        for each in list(islice(self._done, max(0, len(self._done) - _MAX_DONE))):
            del self._done[each]
        return report

    async def follow(self, listener: FollowsEvents, every_s: float = 1.0) -> None:
        """Poll for as long as the process runs.

        :param every_s: seconds between two rounds
        """
        while True:
            report = await self.poll()
            if report.counts.events:
                listener.imported(report.counts, report.findings)
            await self._scheduler.sleep(every_s)

    async def _observe(self) -> tuple[RecordedSource, RecordedSource]:
        """What the streams have allocated, and up to where they are settled."""
        seen, open_now = await self._source.observe(self._bounds)
        now = self._scheduler.seconds()
        last: dict[str, int] = {}
        settled: dict[str, int] = {}
        for name, bounds in self._bounds.items():
            found = seen[name]
            highest = max(found.last or 0, found.highest)
            safe = bounds.update(found.recorded, highest, open_now, now)
            last[name], settled[name] = safe.last, safe.bound.linear
        return (
            RecordedSource(last[EVENTS.name], last[BACKFILL.name]),
            RecordedSource(settled[EVENTS.name], settled[BACKFILL.name]),
        )

    async def _import_facts(
        self, tables: RoomTables, facts: Sequence[Fact], report: ImportReport
    ) -> None:
        rooms: dict[str, list[tuple[int, str]]] = {}
        for fact in facts:
            for row in fact.rows:
                if isinstance(row, EventRow | BackfillRow):
                    at = (fact.token, row.event_id)
                    if at not in self._done:
                        rooms.setdefault(row.room_id, []).append(at)
        for room_id, new in rooms.items():
            event_ids = dict.fromkeys([each for _, each in new])
            for each in await self._importer.stored(event_ids):
                del event_ids[each]
            if event_ids:
                await self._import_events(tables, room_id, list(event_ids), report)
            self._done.update(dict.fromkeys(new))

    async def _import_events(
        self, tables: RoomTables, room_id: str, event_ids: Sequence[str], report: ImportReport
    ) -> None:
        progress = await self._journal.room(room_id)
        if not progress.finished:
            # A new room, or one whose copy was interrupted or left out: what is there is copied.
            progress = await self._importer.import_room(tables, room_id)
            report.rooms += 1
            report.add(progress.counts, ())
            return
        auditor = self._auditors.pop(room_id, None)
        if auditor is None:
            room = await self._importer.read(lambda txn: read_room(txn, tables, room_id))
            auditor = self._importer.auditor(room)
            if auditor is None:
                return
        self._auditors[room_id] = auditor
        if len(self._auditors) > _MAX_ROOMS:
            del self._auditors[next(iter(self._auditors))]
        await self._import_batches(auditor, progress, event_ids, report)

    async def _import_batches(
        self,
        auditor: RoomAuditor,
        progress: RoomProgress,
        event_ids: Sequence[str],
        report: ImportReport,
    ) -> None:
        rows: list[SourceEvent] = await self._importer.read(
            lambda txn: events_by_id(txn, event_ids)
        )
        batch = await self._importer.read(lambda txn: auditor.these(txn, rows))
        await self._importer.store(auditor, batch, progress)
        report.add(batch.counts, batch.findings)

    async def _complete_partial_rooms(self, tables: RoomTables) -> None:
        """Import the rooms that were left out while they were partial, once they are complete."""
        for room_id, reason in (await self._journal.left_out()).items():
            if reason == PARTIAL:
                await self._importer.import_room(tables, room_id)


def _reached(settled: RecordedSource, goal: RecordedSource) -> bool:
    return settled.events >= goal.events and settled.backfill >= goal.backfill
