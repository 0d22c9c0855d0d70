"""Rooms are exported to files of events, and imported from them."""

from __future__ import annotations

import json
from io import BytesIO
from random import Random

from synrepl.rooms import Room, event_of, room_version
from synrepl.services.rooms import json_lines
from synrepl.services.rooms.json_lines import JsonLinesImport, LinesReport, export_room
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.heads import forward_extremities
from synrepl.storage.rooms.tables.numbers import UnknownRoom, require_room
from tests.rooms.test_real_rooms import Recorded
from tests.storage.foreign_rooms import rooms_of
from tests.storage.rooms.store_case import StoreCase


def line_of(fields: object) -> bytes:
    """A line of a file."""
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


class RoomsAsFiles(StoreCase):
    def importing(self, **given: dict[str, str]) -> JsonLinesImport:
        return JsonLinesImport(self.one.persister, self.one.process.database, **given)

    async def imported(self, lines: list[bytes]) -> LinesReport:
        return await self.importing().run(BytesIO(b"".join(lines)))

    async def exported(self, room_id: str) -> list[bytes]:
        pages: list[bytes] = []
        count = await export_room(self.one.process.database, room_id, pages.append)
        lines = b"".join(pages).splitlines(keepends=True)
        self.assertEqual(len(lines), count)
        return lines

    def complete_rooms(self) -> list[Recorded]:
        """The rooms whose events follow only events that were recorded, too."""
        rooms = rooms_of("1.163.2")
        self.assertGreater(len(rooms), 10)
        return rooms

    async def test_lines_in_any_order_are_imported(self) -> None:
        rooms = self.complete_rooms()
        lines = [line_of(row["event"]) for each in rooms for row in each.rows]
        Random(1).shuffle(lines)
        report = await self.imported(lines)
        self.assertEqual((report.lines, report.accepted), (len(lines), len(lines)))
        self.assertEqual((report.waiting, report.refusals), ([], []))
        for recorded in rooms:
            room = Room(room_version(recorded.room["room_version"]), recorded.room_id)
            for row in recorded.rows:
                room.receive(event_of(row["event"], room.version), live=False)
            ends = await self.read(lambda txn: self._ends(txn, recorded.room_id))  # noqa: B023
            self.assertEqual(ends, room.forward_extremities)

    def _ends(self, txn: Transaction, room_id: str) -> set[str]:
        return set(forward_extremities(txn, require_room(txn, room_id).room_no).values())

    async def test_an_export_has_the_bytes_that_came_causes_first(self) -> None:
        recorded = max(self.complete_rooms(), key=lambda each: len(each.rows))
        lines = [line_of(row["event"]) for row in recorded.rows]
        Random(2).shuffle(lines)
        await self.imported(lines)
        found = await self.exported(recorded.room_id)
        self.assertEqual(sorted(found), sorted(lines))
        version = room_version(recorded.room["room_version"])
        seen: set[str] = set()
        for line in found:
            event = event_of(json.loads(line), version)
            self.assertTrue(seen.issuperset(event.prev_event_ids), event.event_id)
            seen.add(event.event_id)

    async def test_an_export_in_pages_is_the_same(self) -> None:
        recorded = self.complete_rooms()[0]
        await self.imported([line_of(row["event"]) for row in recorded.rows])
        whole = await self.exported(recorded.room_id)
        self.patch(json_lines, "BATCH", 7)
        self.assertEqual(await self.exported(recorded.room_id), whole)

    async def test_an_import_again_changes_nothing(self) -> None:
        recorded = self.complete_rooms()[0]
        lines = [line_of(row["event"]) for row in recorded.rows]
        await self.imported(lines)
        report = await self.imported(lines)
        self.assertEqual((report.known, report.accepted), (len(lines), 0))

    async def test_lines_that_are_no_events_are_named_and_the_others_imported(self) -> None:
        recorded = self.complete_rooms()[0]
        lines = [line_of(row["event"]) for row in recorded.rows]
        lines[1:1] = [b"nonsense\n", b"{}\n", b"\n", b"[1]\n", b'{"room_id":"!o:x"}\n']
        report = await self.imported(lines)
        self.assertEqual(report.accepted, len(recorded.rows))
        self.assertEqual([each.line for each in report.refusals], [2, 3, 5, 6])
        self.assertIn("!o:x", report.refusals[-1].reason)

    async def test_a_line_that_is_too_long_is_named(self) -> None:
        self.patch(json_lines, "MAX_LINE", 20_000)
        recorded = self.complete_rooms()[0]
        lines = [line_of(row["event"]) for row in recorded.rows]
        lines.insert(3, b"x" * 50_000 + b"\n")
        report = await self.imported(lines)
        self.assertEqual([each.line for each in report.refusals], [4])
        self.assertEqual(report.accepted, len(recorded.rows))

    async def test_an_event_with_another_content_is_imported_redacted(self) -> None:
        recorded = self.complete_rooms()[0]
        rows = [dict(row["event"]) for row in recorded.rows]
        at = next(n for n, each in enumerate(rows) if each["type"] == "m.room.message")
        rows[at]["content"] = {"body": "another"}
        report = await self.imported([line_of(each) for each in rows])
        self.assertEqual(report.accepted, len(rows))
        self.assertEqual([each.line for each in report.refusals], [at + 1])
        self.assertNotIn(b"another", b"".join(await self.exported(recorded.room_id)))

    async def test_events_whose_causes_are_in_no_line_wait(self) -> None:
        recorded = self.complete_rooms()[0]
        lines = [line_of(row["event"]) for row in recorded.rows]
        gone = lines.pop(len(lines) // 2)
        report = await self.imported(lines)
        self.assertGreater(len(report.waiting), 0)
        self.assertEqual(report.accepted + len(report.waiting), len(lines))
        report = await self.imported([gone])
        self.assertEqual(report.waiting, [])
        self.assertEqual(len(await self.exported(recorded.room_id)), len(recorded.rows))

    async def test_the_version_of_a_room_can_be_given(self) -> None:
        recorded = next(each for each in self.complete_rooms() if each.room["room_version"] == "10")
        line = line_of(recorded.rows[-1]["event"])
        report = await self.imported([line])
        self.assertEqual(report.refused, 1)
        given = self.importing(versions={recorded.room_id: "10"})
        report = await given.run(BytesIO(line))
        self.assertEqual((report.refused, len(report.waiting)), (0, 1))

    async def test_an_unknown_room_cannot_be_exported(self) -> None:
        with self.assertRaises(UnknownRoom):
            await self.exported("!other:x")
