"""The record of an import, in synrepl's own database: what makes it resumable, and what it found."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import msgspec

from synrepl.services.rooms.importing.findings import (
    ImportCounts,
    ImportFinding,
    ImportReport,
    Quarantined,
)
from synrepl.storage.database import Database, Transaction
from synrepl.storage.foreign.rooms.events import BEFORE_ALL, RoomPosition
from synrepl.storage.rooms.tables import imports
from synrepl.storage.rooms.tables.imports import RecordedSource

_ENCODER = msgspec.json.Encoder()
_COUNTS = msgspec.json.Decoder(ImportCounts)
_FINDING = msgspec.json.Decoder(ImportFinding)


class RoomProgress(msgspec.Struct):
    """How far the import of one room is.

    :ivar position: of the last event that was imported
    :ivar group: the last of the state groups that are the state of no event
    :ivar left_out: why it was not imported
    """

    position: RoomPosition = BEFORE_ALL
    group: int = 0
    finished: bool = False
    left_out: str | None = None
    counts: ImportCounts = msgspec.field(default_factory=lambda: ImportCounts(findings={}))


class ImportJournal:
    """Records one source's import.

    :param source: a name for the database that rooms are imported from
    """

    def __init__(self, database: Database, source: str) -> None:
        self._database = database
        self.source = source

    async def room(self, room_id: str) -> RoomProgress:
        """How far a room is."""
        row = await self._database.run(
            "room import",
            lambda txn: imports.read_import(txn, self.source, room_id),
            read_only=True,
        )
        if row is None:
            return RoomProgress()
        return RoomProgress(
            RoomPosition(row.topological, row.stream),
            row.state_group,
            row.finished,
            row.left_out,
            _COUNTS.decode(row.counts),
        )

    async def record(
        self,
        room_id: str,
        progress: RoomProgress,
        findings: Iterable[ImportFinding] = (),
        quarantined: Iterable[Quarantined] = (),
    ) -> None:
        """Record a batch, in one transaction."""
        row = imports.RecordedRoom(
            progress.position.topological,
            progress.position.stream,
            progress.group,
            progress.finished,
            progress.left_out,
            _ENCODER.encode(progress.counts).decode(),
        )
        found = [_finding_row(each) for each in findings]
        apart = [
            imports.QuarantineRow(each.event_id, each.room_id, each.raw, each.reason)
            for each in quarantined
        ]

        def work(txn: Transaction) -> None:
            imports.add_findings(txn, self.source, found)
            imports.add_to_quarantine(txn, self.source, apart)
            imports.write_import(txn, self.source, room_id, row)

        await self._database.run("record room import", work)

    def of_retry(self) -> ImportJournal:
        """The journal of a retry, whose records replace those of this one room by room."""
        return ImportJournal(self._database, f"{self.source} (retry)")

    async def imperfect_rooms(self, after: str, limit: int) -> list[str]:
        """A page of the rooms that a retry may improve; see :func:`.imports.imperfect_rooms`."""
        return await self._database.run(
            "imperfect rooms",
            lambda txn: imports.imperfect_rooms(txn, self.source, after, limit),
            read_only=True,
        )

    async def replace(self, room_id: str, retried: ImportJournal) -> None:
        """Take over what the journal of a retry has recorded of a room."""
        await self._database.run(
            "replace room import",
            lambda txn: imports.replace_import(txn, self.source, room_id, retried.source),
        )

    async def positions(self) -> RecordedSource | None:
        """From where on to follow the source; None before its first import."""
        return await self._database.run(
            "import positions", lambda txn: imports.read_source(txn, self.source), read_only=True
        )

    async def record_positions(self, positions: RecordedSource) -> None:
        """Record from where on to follow."""
        await self._database.run(
            "record import positions",
            lambda txn: imports.write_source(txn, self.source, positions),
        )

    async def left_out(self) -> dict[str, str]:
        """By room ID, why a room was not imported."""
        return await self._database.run(
            "left out", lambda txn: imports.left_out_rooms(txn, self.source), read_only=True
        )

    async def quarantine(self, after: str = "", limit: int = 1000) -> list[imports.QuarantineRow]:
        """A page of the events in quarantine, by event ID.

        :param after: only events behind this one
        """
        return await self._database.run(
            "quarantine",
            lambda txn: imports.read_quarantine(txn, self.source, after, limit),
            read_only=True,
        )

    async def report(self, findings: int) -> ImportReport:
        """Everything that was recorded so far.

        :param findings: maximum number of findings
        """

        def work(txn: Transaction) -> ImportReport:
            report = ImportReport.empty()
            report.left_out = imports.left_out_rooms(txn, self.source)
            for counts in imports.recorded_counts(txn, self.source):
                report.rooms += 1
                report.counts.add(_COUNTS.decode(counts))
            found = imports.read_findings(txn, self.source, None, findings)
            report.findings = [_FINDING.decode(each) for each in found]
            return report

        return await self._database.run("import report", work, read_only=True)


def _finding_row(finding: ImportFinding) -> imports.FindingRow:
    encoded = _ENCODER.encode(finding)
    return imports.FindingRow(
        sha256(encoded).digest(),
        finding.room_id,
        finding.kind.value,
        finding.event_id,
        encoded.decode(),
    )
