"""``synrepl rooms import``: a real Synapse's rooms, and files of events, into a store that is in use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg2

from tests.cli.cli_case import CommandResult, InProcessMaster
from tests.cli.rooms_case import SETTINGS, RoomsCase
from tests.rooms.built_rooms import CAROL, BuiltRoom
from tests.rooms.test_real_rooms import Recorded
from tests.storage.foreign_rooms import room_database, rooms_of, take_out


class ImportCase(RoomsCase):
    """Has a master without rooms."""

    async def imported(self, master: InProcessMaster, *arguments: object) -> CommandResult:
        return await self.rooms(master, "import", *arguments)

    def file(self, *lines: bytes, name: str = "room.jsonl") -> Path:
        path = self.directory / name
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return path


class ImportOfFiles(ImportCase):
    """A file has events with hashes and signatures."""

    def setUp(self) -> None:
        super().setUp()
        self.built = BuiltRoom("10")
        self.built.member(CAROL, "join")
        self.built.send("m.room.message", {"body": "hello"}, CAROL)
        self.lines = [each.raw for each in self.built.events]

    async def test_a_room_that_was_exported_comes_back(self) -> None:
        master = await self.master(**SETTINGS)
        path = self.file(*self.lines)
        done = await self.rooms_json(master, "import", "--file", path)
        self.assertEqual(
            done,
            {
                "lines": 6,
                "accepted": 6,
                "rejected": 0,
                "known": 0,
                "refused": 0,
                "waiting": [],
                "refusals": [],
            },
        )
        exported = await self.rooms_text(master, "export", self.built.events[0].room_id)
        self.assertEqual(exported.encode().splitlines(), self.lines)
        text = await self.rooms_text(master, "import", "--file", path)
        self.assertEqual(text, "lines        6\nhere before  6\n")
        verified = await self.rooms_json(master, "verify")
        self.assertEqual((verified["findings"], verified["checked"]["events"]), ([], 6))

    async def test_the_running_master_announces_the_facts_to_its_followers(self) -> None:
        master = await self.master(**SETTINGS)
        follower = self.start("tail", master.address, "events", "--commands", "--count", "11")
        while b"POSITION events" not in follower.out:
            await follower.lines(follower.out.count(b"\n") + 1)
        path = self.file(*self.lines)
        await self.rooms_text(master, "import", "--file", path, "--writer", "loader")
        heard = await follower.done()
        self.assertEqual((heard.code, heard.err), (0, ""))
        announced = [
            each.event_id for each in self.built.events if f'"{each.event_id}"' in heard.out
        ]
        self.assertEqual(announced, [each.event_id for each in self.built.events])
        rows = [line.split()[1:3] for line in heard.out.splitlines() if '["ev"' in line]
        self.assertEqual(rows, [["events", "loader"]] * len(rows))

    async def test_lines_that_are_no_events_are_named_and_the_others_imported(self) -> None:
        master = await self.master(**SETTINGS)
        path = self.file(*self.lines[:3], b"{}", b"\x1b[31m", b"[")
        done = await self.imported(master, "--file", path)
        self.assertEqual((done.code, done.err), (1, ""))
        self.assertRegex(done.out, r"(?m)^accepted +3$")
        self.assertRegex(done.out, r"(?m)^refused, or redacted +3$")
        self.assertRegex(done.out, r"(?m)^ +4 +.*room_id")
        self.assertNotIn("\x1b", done.out)

    async def test_events_that_wait_for_others_are_listed(self) -> None:
        master = await self.master(**SETTINGS)
        path = self.file(self.lines[0], self.lines[-1])
        text = await self.rooms_text(master, "import", "--file", path)
        self.assertRegex(text, r"(?m)^waiting for others +1$")
        self.assertIn(f"\n{self.built.events[-1].event_id}\n", text)

    async def test_a_version_is_given_where_the_file_has_none(self) -> None:
        master = await self.master(**SETTINGS)
        path, room_id = self.file(self.lines[-1]), self.built.events[0].room_id
        done = await self.imported(master, "--file", path)
        self.assertEqual(done.code, 1)
        self.assertIn("its room version is not known", done.out)
        given = ("--file", path, "--room-version", room_id, "10")
        self.assertIn("waiting", await self.rooms_text(master, "import", *given))
        done = await self.imported(master, "--file", path, "--room-version", room_id, "no")
        self.assertEqual(done.code, 1)
        self.assertIn("room version", done.err)


class ImportsThatAreRefused(ImportCase):
    async def test_without_a_source_or_with_two(self) -> None:
        master = await self.master(**SETTINGS)
        path = self.file(name="dsn")
        for arguments in ((), ("--file", path, "--database-path", path)):
            done = await self.imported(master, *arguments)
            self.assertEqual((done.code, done.out), (2, ""), done.err)
            self.assertIn("what is to be imported? Say one of --database-path", done.err)
        for arguments in (("--file", path, "!a:b"), ("--file", path, "--follow")):
            done = await self.imported(master, *arguments)
            self.assertEqual(done.code, 2)
            self.assertIn("do not go with --file", done.err)

    async def test_a_file_that_cannot_be_read(self) -> None:
        master = await self.master(**SETTINGS)
        done = await self.imported(master, "--file", self.directory / "none")
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertRegex(done.err, r"^synrepl: error: .*/none cannot be read: No such file")

    async def test_a_configuration_without_rooms(self) -> None:
        master = await self.master()
        done = await self.imported(master, "--file", self.file())
        self.assertEqual(done.code, 2)
        self.assertIn("the configuration has no 'rooms'", done.err)

    async def test_the_name_of_a_writer_that_runs(self) -> None:
        master = await self.master(**SETTINGS)
        done = await self.imported(master, "--file", self.file(), "--writer", "master")
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertRegex(done.err, r"^synrepl: error: .*'?master'?")
        self.assertNotIn("Traceback", done.err)

    async def test_a_database_that_is_no_synapse(self) -> None:
        master = await self.master(**SETTINGS)
        dsn = self.file(master.running.database.dsn.encode(), name="dsn")
        dsn.chmod(0o600)
        done = await self.imported(master, "--database-path", dsn)
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertTrue(done.err.startswith("synrepl: error: "), done.err)

    async def test_keys_that_their_server_did_not_sign(self) -> None:
        master = await self.master(**SETTINGS)
        dsn = self.file(b"postgresql://u@127.0.0.1/none", name="dsn")
        dsn.chmod(0o600)
        for answer, reason in (
            ({"server_name": "a", "verify_keys": {}}, "a did not sign it"),
            ({"verify_keys": {}}, "it does not say the server's name"),
            ({"server_name": "a", "verify_keys": {"ed25519:1": {"key": "!"}}}, "ed25519:1"),
            ([], "it does not say the server's name"),
        ):
            path = self.file(json.dumps(answer).encode(), name="keys.json")
            done = await self.imported(master, "--database-path", dsn, "--server-keys", path)
            self.assertEqual(done.code, 1)
            self.assertIn(f"{path} has no keys of a server: ", done.err)
            self.assertIn(reason, done.err)


class ImportOfASynapse(ImportCase):
    """Rooms that a real server of 1.163.2 recorded."""

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        rooms = [each for each in rooms_of("1.163.2") if each.current_state]
        by_size = sorted(rooms, key=lambda each: len(each.rows))
        self.recorded: list[Recorded] = by_size[:2]
        self.source = await room_database("1.163.2", self, self.recorded)
        self.dsn = self.file(self.source.encode(), name="dsn")
        self.dsn.chmod(0o600)

    def change(self, statement: str) -> None:
        connection = psycopg2.connect(self.source)
        with connection, connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            cursor.execute(statement)
        connection.close()

    def newest(self) -> dict[str, Any]:
        """The newest event of both rooms."""
        rows = (row for each in self.recorded for row in each.rows if not row["outlier"])
        return max(rows, key=lambda row: int(row["stream_ordering"]))

    async def report(self, master: InProcessMaster, *arguments: object, code: int = 0) -> Any:
        return await self.rooms_json(
            master, "import", "--database-path", self.dsn, *arguments, code=code
        )

    async def test_everything_is_as_the_source_has_it(self) -> None:
        master = await self.master(**SETTINGS)
        found = await self.report(master)
        self.assertEqual((found["rooms"], found["equal"], found["findings"]), (2, True, []))
        events = sum(len(each.rows) for each in self.recorded)
        self.assertEqual(found["counts"]["imported"], events)
        for recorded in self.recorded:
            state = await self.rooms_json(master, "state", recorded.room_id)
            self.assertEqual(
                {(each["type"], each["state_key"]): each["event_id"] for each in state["state"]},
                recorded.current_state,
            )
        text = await self.rooms_text(master, "import", "--database-path", self.dsn)
        self.assertRegex(text, r"(?m)^rooms +2$")
        self.assertTrue(text.endswith("\nEverything is as the source has it.\n"), text)
        self.assertEqual((await self.rooms_json(master, "verify"))["findings"], [])

    async def test_signatures_are_checked_where_keys_are_known(self) -> None:
        master = await self.master(**SETTINGS)
        first, second = (each.room_id for each in self.recorded)
        checked = (await self.report(master, first))["counts"]
        self.assertGreater(checked["signatures"], 0)
        self.change("DELETE FROM server_signature_keys")
        both = (await self.report(master, second))["counts"]
        self.assertEqual(both["signatures"], checked["signatures"])
        self.assertGreater(both["unverified"], checked["unverified"])

    async def test_a_retry_imports_what_was_kept_apart(self) -> None:
        recorded = self.recorded[0]
        row = next(
            each
            for each in recorded.rows
            if each["event"]["type"] == "m.room.message" and not each["outlier"]
        )
        event_id = row["event_id"]
        self.change(f"UPDATE event_json SET json = '{{}}' WHERE event_id = '{event_id}'")
        master = await self.master(**SETTINGS)
        found = await self.report(master, code=1)
        self.assertEqual((found["counts"]["quarantined"], found["equal"]), (1, False))
        text = json.dumps(row["event"]).replace("'", "''").replace("%", "%%")
        self.change(f"UPDATE event_json SET json = '{text}' WHERE event_id = '{event_id}'")
        again = await self.report(master, code=1)
        self.assertEqual(again, found)
        retried = await self.report(master, "--retry")
        self.assertEqual((retried["counts"]["quarantined"], retried["equal"]), (0, True))
        shown = await self.rooms_json(master, "show", event_id)
        self.assertEqual(shown["json"], row["event"])
        self.assertLess(shown["stream_id"], 0)
        self.assertEqual((await self.rooms_json(master, "verify"))["findings"], [])

    async def test_a_room_that_the_source_does_not_have_is_named(self) -> None:
        master = await self.master(**SETTINGS)
        known = self.recorded[0].room_id
        for arguments in ((known, "!none:x"), ("--retry", "!none:x")):
            done = await self.imported(master, "--database-path", self.dsn, *arguments)
            self.assertEqual((done.code, done.out), (1, ""), done.err)
            self.assertIn("the Synapse at the source has no event of !none:", done.err)
        done = await self.imported(master, "--database-path", self.dsn, "!n\udcff:x")
        self.assertEqual((done.code, done.out), (1, ""), done.err)
        self.assertIn(r"argument !n\udcff:x is not UTF-8 text", done.err)
        self.assertEqual((await self.rooms_json(master, "list"))["rooms"], [])

    async def test_what_differs_is_named_with_both_values(self) -> None:
        recorded = self.recorded[0]
        event_id = recorded.rows[1]["event_id"]
        self.change(f"UPDATE events SET sender = '@x:y' WHERE event_id = '{event_id}'")
        master = await self.master(**SETTINGS)
        done = await self.imported(master, "--database-path", self.dsn, recorded.room_id)
        self.assertEqual((done.code, done.err), (1, ""))
        self.assertRegex(
            done.out,
            rf"(?m)^wrong column: {recorded.room_id}, event \{event_id}, sender: the server has"
            r" @x:y, it should be @\S+$",
        )
        self.assertNotIn("Everything", done.out)

    async def test_a_copy_is_kept_current(self) -> None:
        last = self.newest()
        put_back = take_out(self.source, [last["event_id"]])
        master = await self.master(**SETTINGS)
        command = self.start(
            *("rooms", "import", "-c", master.path, "--database-path", self.dsn, "--follow")
        )
        events = sum(len(each.rows) for each in self.recorded)
        self.assertEqual(await command.lines(1), [f"imported {events - 1} events"])
        put_back()
        self.assertEqual((await command.lines(2))[1], "imported 1 event")
        shown = await self.rooms_json(master, "show", last["event_id"])
        self.assertEqual(shown["json"], last["event"])
        command.signal("INT")
        done = await command.done()
        self.assertEqual((done.code, done.err), (130, ""))

    async def test_what_happens_between_imports_of_single_rooms_is_not_lost(self) -> None:
        last = self.newest()
        put_back = take_out(self.source, [last["event_id"]])
        master = await self.master(**SETTINGS)
        await self.report(master, last["event"]["room_id"])
        put_back()
        await self.report(master)
        shown = await self.rooms_json(master, "show", last["event_id"])
        self.assertEqual(shown["event_id"], last["event_id"])
