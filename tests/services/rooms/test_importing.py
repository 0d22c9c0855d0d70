"""Rooms of recorded Synapse servers are imported, and everything that was corrupted is named."""

from __future__ import annotations

import json
from typing import Any

from synrepl.rooms import keys_of
from synrepl.services.rooms.importing.findings import FindingKind
from synrepl.services.rooms.importing.importer import PARTIAL, ImportProgress
from tests.rooms.test_real_rooms import KNOWN, Recorded
from tests.services.rooms.importing_case import ImportingCase, RoomsInMemory
from tests.storage.foreign_rooms import published_keys, rooms_of


class ImportingRecordedRooms(ImportingCase):
    async def check(self, version: str) -> tuple[Any, RoomsInMemory, list[Recorded]]:
        rooms = rooms_of(version)
        sink = RoomsInMemory()
        importer = await self.importer(await self.source(version, rooms), sink)
        report = await importer.run()
        self.assertEqual(report.rooms, len(rooms))
        events = sum(len(each.rows) for each in rooms)
        self.assertEqual(report.counts.events, events)
        self.assertEqual(report.counts.imported, events)
        self.assertEqual(report.counts.signatures, events)
        for recorded in rooms:
            room = sink.rooms[recorded.room_id]
            self.assertEqual(room.forward_extremities, set(recorded.room["forward_extremities"]))
            if recorded.current_state:
                self.assertEqual(room.current_state(), recorded.current_state)
            for row in recorded.rows:
                raw = json.dumps(row["event"], ensure_ascii=False).encode()
                self.assertEqual(room[row["event_id"]].event.raw, raw)
        return report, sink, rooms

    async def test_rooms_of_the_current_release_are_equal(self) -> None:
        report, sink, rooms = await self.check("1.163.2")
        self.assertEqual(report.findings, [])
        self.assertTrue(report.is_equal)
        states = 0
        for recorded in rooms:
            room = sink.rooms[recorded.room_id]
            for row in recorded.rows:
                expected = recorded.state(row["state_group"])
                self.assertEqual(room[row["event_id"]].state_after, expected)
                states += 1
        self.assertEqual(report.counts.states, states)
        self.assertGreater(report.counts.groups, 10)

    async def test_a_wrong_resolution_of_an_old_release_is_named_where_it_begins(self) -> None:
        report, _, _ = await self.check("1.11.1")
        found = self.only(report)
        self.assertEqual(found.kind, FindingKind.STATE)
        self.assertEqual(found.event_id[:6], KNOWN["1.11.1"].split()[0])
        self.assertEqual(found.key, ("m.room.member", "@fk5_b3:localhost:18501"))
        self.assertNotEqual(found.theirs, found.ours)
        self.assertIn(found.event_id, str(found))
        self.assertEqual(report.counts.differing, len(KNOWN["1.11.1"].split()))
        self.assertEqual(report.counts.inherited, report.counts.differing - 1)

    async def test_a_state_that_another_server_reported_wrongly_is_named(self) -> None:
        report, _, _ = await self.check("1.43.0")
        found = self.only(report)
        self.assertEqual(found.key, ("m.room.join_rules", ""))
        self.assertEqual(report.counts.differing, len(KNOWN["1.43.0"].split()))
        self.assertEqual(report.counts.soft_failed, 5)

    async def test_a_second_run_reads_nothing_again(self) -> None:
        rooms = rooms_of("1.163.2")[:2]
        sink = RoomsInMemory()
        importer = await self.importer(await self.source("1.163.2", rooms), sink)
        first = await importer.run()
        sink.rooms.clear()
        self.assertEqual(await importer.run(), first)
        self.assertEqual(sink.rooms, {})

    async def test_an_interrupted_import_goes_on_where_it_was(self) -> None:
        rooms = rooms_of("1.163.2")[:1]

        class Interrupted(RoomsInMemory):
            batches = 0

            async def store(self, *batch: Any) -> Any:
                self.batches += 1
                if self.batches == 3:
                    raise ZeroDivisionError
                return await super().store(*batch)

        sink = Interrupted()
        importer = await self.importer(await self.source("1.163.2", rooms), sink, batch=10)
        with self.assertRaises(ZeroDivisionError):
            await importer.run()
        report = await importer.run()
        events = len(rooms[0].rows)
        self.assertEqual(report.counts.events, events)
        self.assertEqual(sink.batches, -(-events // 10) + 1)
        self.assertTrue(report.is_equal, report.findings)
        self.assertEqual(len(sink.rooms[rooms[0].room_id]), events)

    async def test_progress_is_reported_room_by_room(self) -> None:
        rooms = rooms_of("1.163.2")[:2]
        importer = await self.importer(await self.source("1.163.2", rooms), batch=20)
        seen: list[ImportProgress] = []
        await importer.run(on_progress=seen.append)
        self.assertEqual({each.rooms for each in seen}, {2})
        self.assertEqual([seen[0].room, seen[-1].room], [1, 2])
        self.assertEqual(seen[0].done, 0)
        self.assertEqual(seen[-1].done, seen[-1].events)
        self.assertEqual({each.room_id for each in seen}, {each.room_id for each in rooms})


class ImportingCorruptedRooms(ImportingCase):
    """One thing is corrupted in a copy of a server's room; just that is named."""

    async def setUp(self) -> None:  # type: ignore[override]
        self.recorded = next(
            each for each in rooms_of("1.163.2") if each.room["room_version"] == "10"
        )
        self.room_id = self.recorded.room_id
        self.dsn = await self.source("1.163.2", [self.recorded])
        self.sink = RoomsInMemory()

    def message(self, number: int = 0) -> str:
        """A message event."""
        found = [
            row["event_id"]
            for row in self.recorded.rows
            if row["event"]["type"] == "m.room.message"
        ]
        return str(found[number])

    async def imported(self, **given: Any) -> Any:
        importer = await self.importer(self.dsn, self.sink, **given)
        self.journal = importer.journal
        return await importer.run()

    async def test_a_changed_byte_of_the_content(self) -> None:
        event_id = self.message()
        self.change(
            self.dsn,
            'UPDATE event_json SET json = replace(json, \'"body": "\', \'"body": "x\')'
            " WHERE event_id = %s",
            event_id,
        )
        report = await self.imported()
        found = self.only(report)
        self.assertEqual((found.kind, found.event_id), (FindingKind.WRONG_HASH, event_id))
        self.assertNotEqual(found.theirs, found.ours)
        room = self.sink.rooms[self.room_id]
        self.assertEqual(room[event_id].event.content, {})

    async def test_a_changed_byte_of_what_the_id_covers(self) -> None:
        event_id = self.message()
        self.change(
            self.dsn,
            "UPDATE event_json SET json = regexp_replace(json, '\"origin_server_ts\": 1',"
            " '\"origin_server_ts\": 2') WHERE event_id = %s",
            event_id,
        )
        report = await self.imported()
        found = self.only(report)
        self.assertEqual((found.kind, found.theirs), (FindingKind.WRONG_ID, event_id))
        self.assertEqual(report.counts.quarantined, 1)
        self.assertNotIn(event_id, self.sink.rooms[self.room_id])
        self.assertEqual(len(self.sink.rooms[self.room_id]), len(self.recorded.rows) - 1)

    async def test_a_changed_signature(self) -> None:
        event_id = self.message()
        self.change(
            self.dsn,
            "UPDATE event_json SET json = jsonb_set(json::jsonb,"
            " '{signatures,localhost:18701,ed25519:a_hPsY}', to_jsonb(repeat('A', 86)))::text"
            " WHERE event_id = %s",
            event_id,
        )
        found = self.only(await self.imported())
        self.assertEqual((found.kind, found.event_id), (FindingKind.BAD_SIGNATURE, event_id))

    async def test_a_signature_by_a_name_that_no_server_has(self) -> None:
        event_id = self.message()
        row = next(each for each in self.recorded.rows if each["event_id"] == event_id)
        signatures = {**row["event"]["signatures"], "a\0b": {"ed25519:1": "AAAA"}}
        text = json.dumps({**row["event"], "signatures": signatures})
        self.change(self.dsn, "UPDATE event_json SET json = %s WHERE event_id = %s", text, event_id)
        report = await self.imported()
        self.assertEqual(report.counts.quarantined, 0)
        self.assertIn(event_id, self.sink.rooms[self.room_id])

    async def test_json_that_is_no_event(self) -> None:
        event_id = self.message()
        self.change(self.dsn, "UPDATE event_json SET json = '{}' WHERE event_id = %s", event_id)
        found = self.only(await self.imported())
        self.assertEqual((found.kind, found.event_id), (FindingKind.BAD_JSON, event_id))

    async def test_an_event_without_json(self) -> None:
        event_id = self.message()
        self.change(self.dsn, "DELETE FROM event_json WHERE event_id = %s", event_id)
        found = self.only(await self.imported())
        self.assertEqual((found.kind, found.event_id), (FindingKind.NO_JSON, event_id))

    async def test_a_missing_event(self) -> None:
        """Its children are imported with the state that the server has for them."""
        event_id = self.message()
        for table in ("events", "event_json", "event_edges", "event_to_state_groups"):
            self.change(self.dsn, f"DELETE FROM {table} WHERE event_id = %s", event_id)
        report = await self.imported()
        found = self.only(report)
        self.assertEqual((found.kind, found.ours), (FindingKind.MISSING_EVENT, event_id))
        self.assertGreaterEqual(report.counts.given, 1)
        self.assertEqual(len(self.sink.rooms[self.room_id]), len(self.recorded.rows) - 1)

    async def test_a_wrong_entry_of_a_state_group(self) -> None:
        group, wrong = self.late_delta()
        kind, state_key, right = self.recorded.room["state_groups"][str(group)]["delta"][0]
        self.change(
            self.dsn,
            "UPDATE state_groups_state SET event_id = %s WHERE state_group = %s AND type = %s"
            " AND state_key = %s",
            wrong,
            group,
            kind,
            state_key,
        )
        report = await self.imported()
        found = self.only(report)
        self.assertEqual(found.kind, FindingKind.STATE)
        self.assertEqual((found.group, found.key), (group, (kind, state_key)))
        self.assertEqual((found.theirs, found.ours), (wrong, right))
        self.assertEqual(report.counts.inherited, report.counts.differing - 1)

    def late_delta(self) -> tuple[int, str]:
        """A state group with one entry that is the state after an event, and another event."""
        used = {row["state_group"] for row in self.recorded.rows}
        first = self.recorded.rows[0]["event_id"]
        numbers = sorted(map(int, self.recorded.room["state_groups"]), reverse=True)
        for number in numbers[len(numbers) // 2 :]:
            stored = self.recorded.room["state_groups"][str(number)]
            if number in used and stored["prev"] is not None and len(stored["delta"]) == 1:
                return number, first
        raise AssertionError

    async def test_a_state_group_without_its_rows(self) -> None:
        group, _ = self.late_delta()
        self.change(self.dsn, "DELETE FROM state_groups WHERE id = %s", group)
        report = await self.imported()
        found = self.only(report)
        self.assertEqual((found.kind, found.group), (FindingKind.EMPTY_GROUP, group))

    async def test_a_state_group_of_another_room(self) -> None:
        group, _ = self.late_delta()
        self.change(
            self.dsn, "UPDATE state_groups SET room_id = '!other:room' WHERE id = %s", group
        )
        kinds = {each.kind for each in (await self.imported()).findings}
        self.assertEqual(kinds, {FindingKind.OTHER_ROOM})

    async def test_an_accepted_event_that_is_flagged_as_rejected(self) -> None:
        event_id = self.message()
        self.change(
            self.dsn,
            "INSERT INTO rejections (event_id, reason, last_check) VALUES (%s, 'auth', '')",
            event_id,
        )
        found = self.only(await self.imported())
        self.assertEqual((found.kind, found.event_id), (FindingKind.VERDICT, event_id))
        self.assertEqual((found.theirs, found.ours), ("rejected (auth)", "accepted"))

    async def test_an_accepted_state_event_that_is_flagged_as_rejected(self) -> None:
        """What others of the room are judged by is what the rules say."""
        rows = [row for row in self.recorded.rows if row["event"]["type"] == "m.room.power_levels"]
        event_id = rows[0]["event_id"]
        self.change(
            self.dsn,
            "INSERT INTO rejections (event_id, reason, last_check) VALUES (%s, 'auth', '')",
            event_id,
        )
        found = self.only(await self.imported())
        self.assertEqual((found.kind, found.event_id), (FindingKind.VERDICT, event_id))

    async def test_a_wrong_entry_of_the_current_state(self) -> None:
        wrong = self.recorded.rows[0]["event_id"]
        self.change(
            self.dsn,
            "UPDATE current_state_events SET event_id = %s || 'x' WHERE type = 'm.room.join_rules'",
            wrong,
        )
        found = self.only(await self.imported())
        self.assertEqual((found.kind, found.theirs), (FindingKind.CURRENT_STATE, wrong + "x"))

    async def test_a_forward_extremity_that_others_follow(self) -> None:
        event_id = self.message()
        self.change(
            self.dsn,
            "INSERT INTO event_forward_extremities (event_id, room_id) VALUES (%s, %s)",
            event_id,
            self.room_id,
        )
        report = await self.imported()
        kinds = {(each.kind, each.event_id) for each in report.findings}
        self.assertEqual(kinds, {(FindingKind.EXTREMITY, event_id)})

    async def test_wrong_edges(self) -> None:
        event_id = self.message()
        self.change(
            self.dsn,
            "UPDATE event_edges SET prev_event_id = '$other' WHERE event_id = %s",
            event_id,
        )
        found = self.only(await self.imported())
        self.assertEqual((found.kind, found.theirs), (FindingKind.WRONG_EDGES, "$other"))

    async def test_a_wrong_column(self) -> None:
        event_id = self.message()
        self.change(self.dsn, "UPDATE events SET sender = '@other:x' WHERE event_id = %s", event_id)
        found = self.only(await self.imported())
        self.assertEqual((found.column, found.theirs), ("sender", "@other:x"))

    async def test_a_wrong_target_of_a_redaction(self) -> None:
        rows = [row for row in self.recorded.rows if row["event"]["type"] == "m.room.redaction"]
        event_id = rows[0]["event_id"]
        self.change(
            self.dsn, "UPDATE redactions SET redacts = '$other' WHERE event_id = %s", event_id
        )
        found = self.only(await self.imported())
        self.assertEqual((found.kind, found.theirs), (FindingKind.REDACTION, "$other"))

    async def test_a_room_of_an_unknown_version_is_left_out(self) -> None:
        self.change(self.dsn, "UPDATE rooms SET room_version = 'org.example.new'")
        report = await self.imported()
        self.assertIn("org.example.new", report.left_out[self.room_id])
        self.assertFalse(report.is_equal)

    async def test_a_room_with_partial_state_is_left_out_until_it_is_complete(self) -> None:
        self.change(self.dsn, "INSERT INTO partial_state_rooms (room_id) VALUES (%s)", self.room_id)
        importer = await self.importer(self.dsn, self.sink)
        report = await importer.run()
        self.assertEqual(report.left_out, {self.room_id: PARTIAL})
        self.change(self.dsn, "DELETE FROM partial_state_rooms")
        report = await importer.run()
        self.assertEqual(report.left_out, {})
        self.assertEqual(report.counts.events, len(self.recorded.rows))
        self.assertTrue(report.is_equal)

    async def test_events_in_quarantine_keep_their_bytes(self) -> None:
        event_id = self.message()
        self.change(self.dsn, "UPDATE event_json SET json = '{}' WHERE event_id = %s", event_id)
        await self.imported()
        (kept,) = await self.journal.quarantine()
        self.assertEqual((kept.event_id, kept.raw), (event_id, b"{}"))


class ImportingWithKeys(ImportingCase):
    async def test_events_of_servers_without_known_keys_are_counted(self) -> None:
        rooms = rooms_of("1.163.2")[:1]
        dsn = await self.source("1.163.2", rooms)
        self.change(dsn, "DELETE FROM server_signature_keys")
        report = await (await self.importer(dsn)).run()
        self.assertEqual(report.counts.unverified, len(rooms[0].rows))
        self.assertEqual(report.counts.signatures, 0)
        self.assertTrue(report.is_equal)

    async def test_given_keys_are_used(self) -> None:
        rooms = rooms_of("1.163.2")[:1]
        dsn = await self.source("1.163.2", rooms)
        self.change(dsn, "DELETE FROM server_signature_keys")
        keys = keys_of(published_keys("1.163.2"))
        report = await (await self.importer(dsn, keys=keys)).run()
        self.assertEqual(report.counts.signatures, len(rooms[0].rows))

    async def test_keys_of_stored_responses_are_used(self) -> None:
        rooms = rooms_of("1.163.2")[:1]
        dsn = await self.source("1.163.2", rooms)
        self.change(dsn, "DELETE FROM server_signature_keys")
        for server, published in published_keys("1.163.2").items():
            response = {
                "server_name": server,
                "verify_keys": {},
                "old_verify_keys": {
                    key_id: {"key": key, "expired_ts": 4_000_000_000_000}
                    for key_id, key in published.items()
                },
                "valid_until_ts": 1,
            }
            self.change(
                dsn,
                "INSERT INTO server_keys_json (server_name, key_id, from_server, ts_added_ms,"
                " ts_valid_until_ms, key_json) VALUES (%s, 'ed25519:x', %s, 1, 1, %s)",
                server,
                server,
                json.dumps(response).encode(),
            )
        report = await (await self.importer(dsn)).run()
        self.assertEqual(report.counts.signatures, len(rooms[0].rows))
