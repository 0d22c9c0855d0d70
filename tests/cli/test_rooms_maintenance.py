"""``synrepl rooms verify|purge|compact|erase|forget``: real processes on rooms in a real database."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from synrepl.rooms import Room
from tests.cli.cli_case import CliCase, CommandResult
from tests.rooms.dags import Dag, dag, dag_names
from tests.storage.rooms.kept_rooms import MaintainedCase

#: The number of the advisory lock that :class:`RoomsCase` stops commands at.
GATE = 4711

_STOP = f"""
    CREATE FUNCTION public.stop_here() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock({GATE}); RETURN NULL; END';
    CREATE TRIGGER stop_here BEFORE {{statement}} ON synrepl.{{table}}
        FOR EACH STATEMENT EXECUTE FUNCTION public.stop_here()
"""

_STOPPED = (
    f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {GATE} AND NOT granted"
)


class RoomsCase(MaintainedCase, CliCase):
    """A database with rooms, a configuration, and commands that can be stopped at a statement."""

    timeout = 400

    async def setUp(self) -> None:
        await MaintainedCase.setUp(self)
        CliCase.setUp(self)
        self.path = self.configured("example.com")

    def configured(self, server_name: str) -> Path:
        """A configuration of a server that has the database."""
        path = self.directory / f"{server_name}.yaml"
        path.write_text(
            f"server_name: {server_name}\ndatabase: {self.dsn}\ncatalogue: none\n"
            "streams: [{name: orders, columns: {order_id: text}}]\n"
        )
        return path

    async def stored(self, number: int = 0) -> tuple[Dag, Room]:
        """A room of the vectors, in the store and in memory."""
        room_dag = dag(dag_names(60)[number])
        await self.persist(room_dag)
        return room_dag, self.in_memory(room_dag)

    async def rooms(self, command: str, *words: object, path: Path | None = None) -> CommandResult:
        """Run ``synrepl rooms COMMAND``."""
        return await self.run_command("rooms", command, "-c", path or self.path, *words)

    async def json(self, command: str, *words: object, code: int = 0) -> Any:
        """The JSON that a command prints."""
        done = await self.rooms(command, *words, "--json")
        self.assertEqual((done.code, done.err), (code, ""))
        return json.loads(done.out)

    async def refused(self, command: str, *words: object, path: Path | None = None) -> str:
        """The one line of a command that fails."""
        done = await self.rooms(command, *words, path=path)
        self.assertEqual((done.code, done.out), (1, ""))
        (line,) = done.err.splitlines()
        self.assertTrue(line.startswith("synrepl: error: "), line)
        return line

    async def kill_at(self, statement: str, table: str, command: str, *words: object) -> None:
        """Run a command until it is at a statement, and kill it there.

        :param statement: ``UPDATE`` or ``DELETE``
        """
        holder = self.connect()
        self.sql(f"SELECT pg_advisory_lock({GATE})", on=holder)
        self.sql(_STOP.format(statement=statement, table=table))
        running = self.start("rooms", command, "-c", self.path, *words)
        await self.until(lambda: bool(self.sql(_STOPPED)) or running.code is not None)
        self.assertIsNone(running.code, running.err)
        running.signal(signal.SIGKILL)
        self.assertEqual((await running.done()).code, -signal.SIGKILL)
        self.sql(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks"
            f" WHERE locktype = 'advisory' AND objid = {GATE} AND NOT granted"
        )
        self.sql("DROP FUNCTION public.stop_here() CASCADE")
        self.sql(f"SELECT pg_advisory_unlock({GATE})", on=holder)
        holder.close()

    def count(self, table: str) -> int:
        """The number of rows of a table."""
        found: int = self.sql(f"SELECT count(*) FROM synrepl.{table}")
        return found


class RoomsAreVerified(RoomsCase):
    """``synrepl rooms verify``."""

    async def test_says_that_nothing_is_wrong(self) -> None:
        _, one = await self.stored(0)
        _, other = await self.stored(1)
        events, groups = self.count("_room_events"), self.count("_state_groups")
        done = await self.rooms("verify")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(
            done.out,
            "Nothing is wrong in 2 rooms.\n"
            f"Looked at: {events} events, {groups} state groups, and what refers to them.\n"
            "Not looked at: signatures, verdicts, who may see an event, and events that wait.\n",
        )
        done = await self.rooms("verify", one.room_id)
        self.assertTrue(done.out.startswith("Nothing is wrong in 1 room.\n"), done.out)
        found = await self.json("verify", one.room_id, other.room_id)
        self.assertEqual((found["rooms"], found["findings"]), (2, []))
        self.assertEqual(found["checked"]["events"], events)

    async def test_names_what_is_damaged_and_fails(self) -> None:
        room_dag, room = await self.stored()
        event_id = room_dag.events[3].event_id
        self.sql(
            "UPDATE synrepl._room_event_json SET raw = raw || ' '::bytea WHERE event_no ="
            " (SELECT event_no FROM synrepl._room_events WHERE event_id = %s)",
            event_id,
        )
        done = await self.rooms("verify")
        self.assertEqual((done.code, done.err), (1, ""))
        self.assertRegex(done.out, r"corrupt event +.*" + event_id.replace("$", r"\$")[:20])
        self.assertIn("1 finding in 1 room.", done.out)
        found = await self.json("verify", code=1)
        (finding,) = found["findings"]
        self.assertEqual(finding["room_id"], room.room_id)
        self.assertEqual(finding["problem"], "corrupt event")
        self.assertIn(event_id, finding["subject"])

    async def test_stops_after_the_number_of_findings_that_is_wanted(self) -> None:
        await self.stored()
        self.sql("UPDATE synrepl._room_events SET sender = '@x:y'")
        found = await self.json("verify", "--most", "3", code=1)
        self.assertEqual(len(found["findings"]), 3)

    async def test_refuses_a_room_that_is_not_here(self) -> None:
        line = await self.refused("verify", "!none:example.com")
        self.assertIn("!none:example.com", line)


class RoomsArePurged(RoomsCase):
    """``synrepl rooms purge``."""

    async def test_a_plan_changes_nothing(self) -> None:
        _, room = await self.stored()
        before = [self.count("_room_events"), self.count("_state_groups")]
        done = await self.rooms("purge", room.room_id, "--before-topological", "20", "--plan")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertRegex(done.out, r"^at most +events +state events")
        self.assertNotIn("removed", done.out)
        found = await self.json("purge", room.room_id, "--before-topological", "20", "--plan")
        self.assertGreater(found["plan"]["events"], 0)
        self.assertEqual(found.keys(), {"room_id", "plan"})
        self.assertEqual([self.count("_room_events"), self.count("_state_groups")], before)
        await self.check_equal(room)

    async def test_removes_what_was_planned(self) -> None:
        room_dag, room = await self.stored()
        middle = room_dag.events[len(room_dag.events) // 2].event_id
        words = (room.room_id, "--before-event", middle, "--without-index-check")
        planned = (await self.json("purge", *words, "--plan"))["plan"]
        found = await self.json("purge", *words)
        self.assertEqual(found["plan"], planned)
        self.assertEqual(set(found["leftovers"].values()), {0})
        self.assertLessEqual(found["events"] + found["outliers"], planned["events"])
        self.assertGreater(found["lock"]["batches"], 0)
        self.assertEqual((await self.rooms("verify")).code, 0)
        done = await self.rooms("purge", *words)
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn("\n0 rows removed, with 0 events;", done.out)
        self.assertTrue(done.out.endswith("Nothing is left over.\n"), done.out)

    async def test_a_purge_that_was_killed_is_gone_on_with(self) -> None:
        _, room = await self.stored()
        highest = max(each.topological for each in room if each.state_before is not None)
        words = (room.room_id, "--before-topological", highest // 2, "--without-index-check")
        events = self.count("_room_events")
        await self.kill_at("DELETE", "_state_groups", "purge", *words)
        self.assertLess(self.count("_room_events"), events)
        self.assertEqual((await self.rooms("verify")).code, 0)
        found = await self.json("purge", *words)
        self.assertEqual(set(found["leftovers"].values()), {0})
        self.assertEqual((await self.rooms("verify")).code, 0)

    async def test_refuses_what_cannot_be_purged(self) -> None:
        _, room = await self.stored()
        for words in (), ("--before-topological", "1", "--before-stream", "2"):
            done = await self.rooms("purge", room.room_id, *words)
            self.assertEqual((done.code, done.out), (2, ""))
            self.assertIn("give one of --before-event", done.err)
        line = await self.refused("purge", room.room_id, "--before-event", "$none")
        self.assertIn("$none", line)
        self.sql(
            "INSERT INTO synrepl._partial_rooms"
            " (room_no, epoch, device_lists_stream_id, join_event_id, joined_via)"
            " SELECT room_no, epoch, 1, '$join', 'there.example' FROM synrepl._rooms"
        )
        line = await self.refused("purge", room.room_id, "--before-topological", "9")
        self.assertIn("its state is partial", line)
        line = await self.refused("purge", "!none:example.com", "--before-topological", "9")
        self.assertIn("!none:example.com", line)

    async def test_damaged_groups_are_not_removed(self) -> None:
        _, room = await self.stored()
        self.sql("UPDATE synrepl._state_groups SET digest = sha256(digest)")
        groups = self.count("_state_groups")
        words = (room.room_id, "--before-topological", "20", "--without-index-check")
        line = await self.refused("purge", *words)
        self.assertRegex(line, "state group|digest")
        self.assertEqual(self.count("_state_groups"), groups)


class LinesAreRebuilt(RoomsCase):
    """``synrepl rooms rebuild``."""

    async def test_a_line_that_differs_is_built_again(self) -> None:
        _, room = await self.stored(3)
        groups = self.count("_state_groups")
        self.sql("DELETE FROM synrepl._state_line WHERE slot = 1")
        done = await self.rooms("verify")
        self.assertEqual(done.code, 1)
        self.assertIn("line that differs", done.out)
        self.assertIn("'synrepl rooms rebuild ROOM'", done.out)
        done = await self.rooms("rebuild", room.room_id)
        self.assertEqual((done.code, done.err), (0, ""))
        lines = self.count("_state_lines")
        self.assertRegex(
            done.out,
            rf"^{groups} state groups are on {lines} lines? now."
            r" The room was locked for [\d.]+ ms.\n$",
        )
        self.assertEqual((await self.rooms("verify")).code, 0)
        await self.check_equal(room)

    async def test_others_read_the_room_again_and_the_next_rebuilding_is_equal(self) -> None:
        room_dag = dag(dag_names(60)[3])
        half = len(room_dag.events) // 2
        await self.persist(room_dag, 0, half)
        room_id = room_dag.events[0].room_id
        first = await self.json("rebuild", room_id)
        await self.persist(room_dag, half)
        await self.check_equal(self.in_memory(room_dag))
        again = await self.json("rebuild", room_id)
        self.assertGreater(again["groups"], first["groups"])
        self.assertEqual(again["room_id"], room_id)
        await self.check_equal(self.in_memory(room_dag))
        self.assertEqual((await self.rooms("verify")).code, 0)

    async def test_refuses_a_damaged_room_and_one_that_is_not_here(self) -> None:
        _, room = await self.stored(3)
        self.assertIn("!none:example.com", await self.refused("rebuild", "!none:example.com"))
        before = self.count("_state_line")
        self.sql(
            "DELETE FROM synrepl._state_groups"
            " WHERE group_no = (SELECT max(prev_group) FROM synrepl._state_groups)"
        )
        self.assertIn("state group", await self.refused("rebuild", room.room_id))
        self.assertEqual(self.count("_state_line"), before)


class RoomsAreCompacted(RoomsCase):
    """``synrepl rooms compact``."""

    async def spoilt(self) -> Room:
        """A room with groups that are stored at length: deltas as they are, with all that they repeat."""
        _, room = await self.stored(3)
        await self.spoil(room.room_id or "")
        return room

    async def test_shows_what_it_saves(self) -> None:
        room = await self.spoilt()
        done = await self.rooms("compact", room.room_id, "--without-index-check")
        self.assertEqual((done.code, done.err), (0, ""))
        head, before, after, lock = done.out.splitlines()
        self.assertRegex(head, r"^ +state groups +entries +size$")
        self.assertRegex(before, r"^before +\d+ +\d+ +[\d.,]+ k?B$")
        self.assertRegex(after, r"^after +\d+ +\d+ +[\d.,]+ k?B$")
        self.assertRegex(lock, r"^The room was locked \d+ times")
        self.assertLess(int(after.split()[2]), int(before.split()[2]))
        await self.check_equal(room)
        self.assertEqual((await self.rooms("verify")).code, 0)

    async def test_prints_json(self) -> None:
        room = await self.spoilt()
        found = await self.json("compact", room.room_id, "--without-index-check")
        self.assertEqual(found["room_id"], room.room_id)
        self.assertLess(found["after"]["entries"], found["before"]["entries"])
        again = await self.json("compact", room.room_id, "--without-index-check")
        self.assertEqual(again["before"], found["after"])
        self.assertEqual(again["after"], found["after"])

    async def test_a_compaction_that_was_killed_is_gone_on_with(self) -> None:
        room = await self.spoilt()
        words = (room.room_id, "--without-index-check")
        await self.kill_at("UPDATE", "_state_groups", "compact", *words)
        await self.check_equal(room)
        self.assertEqual((await self.rooms("verify")).code, 0)
        found = await self.json("compact", *words)
        self.assertLess(found["after"]["entries"], found["before"]["entries"])
        await self.check_equal(room)

    async def test_refuses_a_damaged_room_and_one_that_is_not_here(self) -> None:
        room = await self.spoilt()
        line = await self.refused("compact", "!none:example.com", "--without-index-check")
        self.assertIn("!none:example.com", line)
        self.sql("UPDATE synrepl._state_groups SET digest = sha256(digest)")
        groups = self.count("_state_groups")
        line = await self.refused("compact", room.room_id, "--without-index-check")
        self.assertRegex(line, "state group|digest")
        self.assertEqual(self.count("_state_groups"), groups)

    async def test_a_server_without_amcheck_is_named_with_the_way_out(self) -> None:
        room = await self.spoilt()
        if self.sql("SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'"):
            self.assertEqual((await self.rooms("compact", room.room_id)).code, 0)
            return
        line = await self.refused("compact", room.room_id)
        self.assertIn("--without-index-check", line)


class UsersAreErased(RoomsCase):
    """``synrepl rooms erase``."""

    async def test_erases_users_that_are_named(self) -> None:
        room_dag, room = await self.stored()
        user = room_dag.events[0].sender
        sent = sum(each.event.sender == user for each in room)
        done = await self.rooms("erase", user, "@nobody:example.com")
        self.assertEqual((done.code, done.err), (0, ""))
        lines = [line.split() for line in done.out.splitlines()[1:]]
        self.assertEqual(lines, [[user, str(sent)], ["@nobody:example.com", "0"]])
        self.assertEqual(await self.json("erase", user), {"events": {user: 0}})
        self.assertEqual((await self.rooms("verify")).code, 0)

    async def test_erases_the_subjects_of_the_database(self) -> None:
        room_dag, _ = await self.stored()
        user = room_dag.events[0].sender
        self.assertEqual(await self.json("erase"), {"events": {}})
        self.sql("SELECT synrepl.erase(%s)", user)
        self.sql("SELECT synrepl.erase('order 17')")
        found = await self.json("erase")
        self.assertEqual(found["events"].keys(), {user})
        self.assertGreater(found["events"][user], 0)

    async def test_an_erasure_that_was_killed_is_gone_on_with(self) -> None:
        room_dag, room = await self.stored()
        user = room_dag.events[0].sender
        await self.kill_at("UPDATE", "_room_event_json", "erase", user)
        # From the first moment on, others see no more than the redacted form.
        self.assertEqual(self.sql("SELECT user_id FROM synrepl._erased_users"), user)
        sent = sum(each.event.sender == user for each in room)
        self.assertEqual(await self.json("erase", user), {"events": {user: sent}})

    async def test_refuses_what_is_no_user_id(self) -> None:
        for word in ("alice", "@alice", "alice:example.com", ""):
            line = await self.refused("erase", word)
            self.assertIn("user", line)
        self.assertEqual(self.count("_erased_users"), 0)


class RoomsAreForgotten(RoomsCase):
    """``synrepl rooms forget``."""

    async def test_removes_a_room_and_no_other(self) -> None:
        _, one = await self.stored(0)
        _, other = await self.stored(1)
        done = await self.rooms("forget", one.room_id)
        self.assertEqual(done, (0, f"Nothing is left of {one.room_id}.\n", ""))
        await self.check_equal(other)
        found = await self.json("forget", other.room_id)
        self.assertEqual(found["room_id"], other.room_id)
        self.assertEqual(set(found["leftovers"].values()), {0})
        self.assertEqual(self.count("_rooms"), 0)
        self.assertEqual(self.count("_room_event_json"), 0)

    async def test_refuses_a_room_with_local_members_and_one_that_is_not_here(self) -> None:
        _, room = await self.stored()
        joined = next(
            key[1]
            for key, event_id in room.current_state().items()
            if key[0] == "m.room.member" and room[event_id].event.membership == "join"
        )
        path = self.configured(joined.partition(":")[2])
        line = await self.refused("forget", room.room_id, path=path)
        self.assertIn("force", line)
        await self.check_equal(room)
        done = await self.rooms("forget", room.room_id, "--force", path=path)
        self.assertEqual(done.code, 0)
        line = await self.refused("forget", room.room_id)
        self.assertIn(room.room_id or "", line)

    async def test_a_removal_that_was_killed_is_gone_on_with(self) -> None:
        _, room = await self.stored()
        await self.kill_at("DELETE", "_state_groups", "forget", room.room_id)
        line = await self.refused("verify", room.room_id)
        self.assertIn(room.room_id or "", line)
        self.assertGreater(self.count("_state_groups"), 0)
        self.assertEqual((await self.rooms("forget", room.room_id)).code, 0)
        self.assertEqual([self.count("_rooms"), self.count("_state_groups")], [0, 0])

    async def test_a_database_of_another_server_is_refused(self) -> None:
        _, room = await self.stored()
        self.sql("INSERT INTO synrepl._server (server_name) VALUES ('else.example')")
        done = await self.rooms("forget", room.room_id)
        self.assertEqual((done.code, done.out), (2, ""))
        self.assertIn("else.example", done.err)
        await self.check_equal(room)
