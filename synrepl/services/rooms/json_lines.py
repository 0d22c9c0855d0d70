"""Rooms as files: one event per line, in federation format, causes first.

A file holds the events of any number of rooms. It can be imported in any order of lines, but an event whose
prev events or auth events are in no line waits in the store, because a file has no states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

import msgspec

from synrepl.core.errors import InputError
from synrepl.rooms import (
    BadEvent,
    Event,
    RoomVersion,
    UnknownRoomVersion,
    content_hash_matches,
    event_of,
    parse_event,
    redact,
    room_version,
)
from synrepl.services.rooms.persister import RoomPersister
from synrepl.storage.database import Database, Transaction
from synrepl.storage.rooms.reading.export import BEFORE_FIRST, OrderedEvent, events_in_order
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent, PersistedBatch
from synrepl.storage.rooms.tables.numbers import find_room, require_room

#: Events of a page of an export, and of a batch of an import.
BATCH = 500

#: Bytes of the longest line that is read: an event has 65,536 at most, and may have ``unsigned`` besides.
MAX_LINE = 1 << 20

#: Refused lines that a report lists.
MAX_LISTED = 1000

#: Events of all rooms that are held until a room's batch is full.
_MAX_HELD = 5_000

_NEWLINES = bytes.maketrans(b"\r\n", b"  ")


class RoomVersionNeeded(InputError):
    """line {line} is of room {room_id}, which is not stored, and whose m.room.create is in no line: its room version is not known; add that event to the file, or give the version"""


class BadEventLine(InputError):
    """line {line} is no event: {reason}"""


class EventLineTooLong(InputError):
    """line {line} has more than {limit} bytes, so it is no event"""


class WrongContentHash(InputError):
    """line {line}: the content of event {event_id} is not what its server hashed; it is imported in its redacted form"""


class RefusedLine(msgspec.Struct, frozen=True):
    """A line that was not imported, or not as it is.

    :ivar line: its number, from 1
    """

    line: int
    reason: str


class LinesReport(msgspec.Struct):
    """The outcome of reading a file, by line.

    :ivar rejected: events that the rules reject; they are stored
    :ivar known: events that were stored before
    :ivar waiting: the IDs of events that wait for others
    :ivar refused: number of lines in ``refusals``, and of those that are not listed
    """

    lines: int = 0
    accepted: int = 0
    rejected: int = 0
    known: int = 0
    refused: int = 0
    waiting: list[str] = []
    refusals: list[RefusedLine] = []


class _LineHead(msgspec.Struct):
    """What is read of a line before its room version is known."""

    type: str | None = None
    room_id: str | None = None
    state_key: str | None = None
    content: msgspec.Raw = msgspec.Raw()


class _CreateContent(msgspec.Struct):
    room_version: str = "1"


_HEAD = msgspec.json.Decoder(_LineHead)
_CREATE = msgspec.json.Decoder(_CreateContent)


async def export_room(database: Database, room_id: str, write: Callable[[bytes], object]) -> int:
    """Write a room's events as lines, in topological order; returns their number.

    Each line has the bytes that came, but for line ends between the tokens of the JSON, which become spaces.
    Outliers are left out.

    :param write: is called with each page of lines
    :raises UnknownRoom: there is no such room
    :raises MissingJson: :raises CorruptEvent: an event's JSON is damaged
    """
    after, count = BEFORE_FIRST, 0
    while True:
        page = await database.run("export", _page(room_id, after), read_only=True)
        if not page:
            return count
        write(b"".join(each.raw.translate(_NEWLINES) + b"\n" for each in page))
        count += len(page)
        after = page[-1].topological, page[-1].stream_id


def _page(room_id: str, after: tuple[int, int]) -> Callable[[Transaction], list[OrderedEvent]]:
    def work(txn: Transaction) -> list[OrderedEvent]:
        return events_in_order(txn, require_room(txn, room_id).room_no, after, BATCH)

    return work


class JsonLinesImport:
    """Imports a file of events.

    :param versions: by room ID, room versions that neither the store nor the file has
    """

    def __init__(
        self,
        persister: RoomPersister,
        database: Database,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self._persister = persister
        self._database = database
        self._versions = {room_id: room_version(name) for room_id, name in (versions or {}).items()}
        self._unknown: set[str] = set()
        #: By room, events with the numbers of their lines.
        self._held: dict[str, list[tuple[int, IncomingEvent]]] = {}
        self._waiting: dict[str, None] = {}

    async def run(
        self, file: BinaryIO, on_progress: Callable[[int], object] = lambda line: None
    ) -> LinesReport:
        """Import all lines. A line that is no event is reported, and the others are imported.

        :param file: is read twice: first for the versions of its rooms
        :param on_progress: is called with the number of lines that were read
        """
        start = file.tell()
        self._find_versions(file)
        file.seek(start)
        report = LinesReport(waiting=[], refusals=[])
        for number, line in _lines(file):
            report.lines = number
            try:
                event = await self._event(number, line, report)
            except InputError as error:
                self._refuse(report, number, error)
                continue
            held = self._held.setdefault(event.room_id, [])
            held.append((number, IncomingEvent(event, live=False)))
            if len(held) >= BATCH:
                await self._flush(event.room_id, report)
            elif sum(map(len, self._held.values())) >= _MAX_HELD:
                await self._flush(max(self._held, key=lambda room: len(self._held[room])), report)
            if number % BATCH == 0:
                on_progress(number)
        for room_id in list(self._held):
            await self._flush(room_id, report)
        on_progress(report.lines)
        report.waiting = list(self._waiting)
        return report

    def _find_versions(self, file: BinaryIO) -> None:
        """Read the versions of the rooms whose ``m.room.create`` is in the file."""
        for _, line in _lines(file):
            if line is None or b"m.room.create" not in line:
                continue
            try:
                head = _HEAD.decode(line)
                if head.type != "m.room.create" or head.state_key != "":
                    continue
                version = room_version(_CREATE.decode(head.content).room_version)
                event = parse_event(line, version)
            except (msgspec.DecodeError, BadEvent, UnknownRoomVersion):
                continue  # refused, and named, by its line
            self._versions.setdefault(event.room_id, version)

    async def _event(self, number: int, line: bytes | None, report: LinesReport) -> Event:
        if line is None:
            raise EventLineTooLong(line=number, limit=MAX_LINE)
        try:
            head = _HEAD.decode(line)
            version = await self._version(number, head)
        except msgspec.DecodeError as error:
            raise BadEventLine(line=number, reason=str(error)) from None
        event = parse_event(line, version)
        if not content_hash_matches(event):
            kept = event_of(redact(event.fields, version), version)
            wrong = WrongContentHash(line=number, event_id=event.event_id)
            self._refuse(report, number, wrong)
            return kept
        return event

    async def _version(self, number: int, head: _LineHead) -> RoomVersion:
        if head.room_id is None:
            if head.type == "m.room.create":
                return room_version(_CREATE.decode(head.content).room_version)
            raise BadEventLine(line=number, reason="it has no room_id")
        room_id = head.room_id
        known = self._versions.get(room_id)
        if known is None and room_id not in self._unknown:
            stored = await self._database.run(
                "room version", lambda txn: find_room(txn, room_id), read_only=True
            )
            if stored is not None:
                known = self._versions[room_id] = room_version(stored.version)
        if known is None:
            self._unknown.add(room_id)
            raise RoomVersionNeeded(line=number, room_id=room_id)
        return known

    async def _flush(self, room_id: str, report: LinesReport) -> None:
        lines, events = zip(*self._held.pop(room_id), strict=True)
        version = events[0].event.version.name
        batch: PersistedBatch = await self._persister.persist(room_id, version, events)
        for line, each in zip(lines, batch.events, strict=True):
            if each.outcome is EventOutcome.KNOWN:
                report.known += 1
            elif each.outcome is EventOutcome.WAITING:
                self._waiting[each.event_id] = None
            elif each.outcome is EventOutcome.REFUSED:
                self._refuse(report, line, each.error or InputError())
        for each in batch.judged:
            self._waiting.pop(each.event_id, None)
            report.accepted += each.outcome is not EventOutcome.REJECTED
            report.rejected += each.outcome is EventOutcome.REJECTED

    @staticmethod
    def _refuse(report: LinesReport, number: int, error: Exception) -> None:
        report.refused += 1
        if len(report.refusals) < MAX_LISTED:
            report.refusals.append(RefusedLine(number, str(error)))


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """The lines that are not blank, with their numbers; None for one that is too long."""
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = file.readline(MAX_LINE)
            yield number, None
        elif stripped := line.strip():
            yield number, stripped
