"""``synrepl watch``: servers of every dialect that play from a script, and a real Synapse's database."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import psycopg2
from twisted.internet import reactor
from twisted.internet.protocol import Factory
from twisted.internet.threads import deferToThread
from twisted.protocols.basic import LineReceiver

from synrepl.adapters.postgres.database import DatabaseLimits, PostgresDatabase
from synrepl.storage.foreign.store import ForeignStore
from synrepl.testing.postgres import fresh_database
from synrepl.tools.watch.lag_monitor import read_committed
from tests.cli.cli_case import CliCase, CommandResult, free_port
from tests.storage.foreign_databases import foreign_database


class ScriptedServer(Factory):
    """Greets, answers one command, and refuses every other REPLICATE.

    :param asked: the command that it answers
    :ivar refused: the commands that it refused
    """

    noisy = False

    def __init__(self, asked: str, *answers: str) -> None:
        self.asked = asked
        self.answers = answers
        self.refused: list[str] = []

    def buildProtocol(self, addr: object) -> Any:
        """Create the protocol for a client."""
        line = _ScriptedConnection()
        line.factory = self
        return line


class _ScriptedConnection(LineReceiver):
    delimiter = b"\n"
    factory: Any

    def connectionMade(self) -> None:
        self.send("SERVER example.com", "PING 1")

    def lineReceived(self, line: bytes) -> None:
        text = line.decode().strip()
        if text == self.factory.asked:
            self.send(*self.factory.answers)
        elif text.startswith("REPLICATE"):
            self.factory.refused.append(text)
            self.send(f"ERROR failed to parse line: {text}")
            self.transport.loseConnection()

    def send(self, *lines: str) -> None:
        for line in lines:
            self.sendLine(line.encode())


class WatchCase(CliCase):
    """A test with scripted servers."""

    def serve(self, server: ScriptedServer) -> int:
        any_reactor: Any = reactor
        port = any_reactor.listenTCP(0, server, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return int(port.getHost().port)

    async def watch(
        self, port: int, *arguments: object
    ) -> tuple[CommandResult, list[dict[str, Any]]]:
        """Run ``synrepl watch``; return its result and the state of each second."""
        done = await self.run_command("watch", "--tcp", f"127.0.0.1:{port}", "--json", *arguments)
        return done, [json.loads(line) for line in done.out.splitlines()]

    def streams(self, look: dict[str, Any]) -> list[list[Any]]:
        return [
            [each[key] for key in ("stream", "writer", "heard", "rows")] for each in look["streams"]
        ]


class WatchOverTcp(WatchCase):
    """``synrepl watch --tcp`` without a database."""

    async def test_detects_the_dialect(self) -> None:
        for name, server, streams in (
            (
                "modern",
                ScriptedServer("REPLICATE", "POSITION events w1 2 2", 'RDATA events w1 3 ["x"]'),
                [["events", "w1", 3, 1]],
            ),
            (
                "transitional",
                ScriptedServer("REPLICATE", "POSITION events w1 2"),
                [["events", "w1", 2, 0]],
            ),
            (
                "legacy",
                ScriptedServer("REPLICATE ALL NOW", "POSITION events 2", 'RDATA events 4 ["x"]'),
                [["events", None, 4, 1]],
            ),
        ):
            with self.subTest(name):
                done, looks = await self.watch(self.serve(server), "--seconds", "3")
                self.assertEqual((done.code, done.err), (0, ""))
                self.assertEqual((looks[-1]["dialect"], looks[-1]["connected"]), (name, True))
                self.assertEqual(self.streams(looks[-1]), streams)
                self.assertEqual((looks[-1]["trouble"], looks[-1]["alarms"]), ([], []))
                # The newest dialect is tried first; older servers refuse it.
                self.assertEqual(server.refused, ["REPLICATE"] * (name == "legacy"))

    async def test_reports_an_unreachable_server(self) -> None:
        done, looks = await self.watch(free_port(), "--seconds", "1")
        self.assertEqual(done.code, 1)
        self.assertIn("cannot connect to 127.0.0.1", looks[-1]["trouble"][0])

    async def test_reports_a_main_process_that_hangs(self) -> None:
        port = self.serve(ScriptedServer("REPLICATE", "POSITION events w1 2 2"))
        _, looks = await self.watch(port, "--seconds", "20")
        self.assertIn("over TCP only the main process is heard", looks[-1]["note"])
        lost = [look for look in looks if not look["connected"] and look["streams"]]
        self.assertIn("ping timeout", lost[0]["trouble"][0])

    async def test_refuses_another_server(self) -> None:
        port = self.serve(ScriptedServer("REPLICATE", "POSITION events w1 2 2"))
        done, looks = await self.watch(port, "--seconds", "2", "--server-name", "example.org")
        self.assertEqual((done.code, looks[-1]["connected"]), (1, False))
        self.assertIn("'example.com'", looks[-1]["trouble"][0])

    async def test_refuses_a_bad_address(self) -> None:
        done = await self.run_command("watch", "--tcp", "nowhere")
        self.assertEqual(done.code, 2)
        self.assertIn("'nowhere' is not HOST:PORT", done.err)

    async def test_shows_a_table_and_serves_metrics(self) -> None:
        port, metrics = (
            self.serve(ScriptedServer("REPLICATE", "POSITION events w1 2 2")),
            free_port(),
        )
        watching = self.start("watch", "--tcp", f"127.0.0.1:{port}", "--metrics-port", metrics)
        while "events  w1" not in watching.out.decode():
            await watching.lines(watching.out.count(b"\n") + 1)
        self.assertIn(f"127.0.0.1:{port}, dialect modern\n", watching.out.decode())

        def scrape() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics") as answer:
                return str(answer.read().decode())

        body = await deferToThread(scrape)
        self.assertIn('synrepl_watch_wire_position{stream="events",writer="w1"} 2.0\n', body)
        self.assertIn("synrepl_watch_connected 1.0\n", body)
        watching.signal("INT")
        self.assertEqual((await watching.done()).code, 130)


class WatchWithDatabase(WatchCase):
    """``synrepl watch`` with the database of a Synapse 1.43.0."""

    async def setUpDatabase(self) -> None:
        self.dsn = await foreign_database("1.43.0", self)
        self.dsn_path = Path(self.directory / "dsn")
        self.dsn_path.touch(mode=0o600)
        self.dsn_path.write_text(self.dsn)
        database = PostgresDatabase(reactor, self.dsn, "test", DatabaseLimits(connections=1))
        try:
            found = await read_committed(ForeignStore(database), announces_moves=False)
            self.positions = found.positions
        finally:
            await database.close()
        self.answers = [
            f"POSITION {stream} {writer} {token} {token}"
            for stream, writers in self.positions.items()
            for writer, token in writers.items()
        ]

    async def test_reports_nothing_when_all_is_announced(self) -> None:
        await self.setUpDatabase()
        port = self.serve(ScriptedServer("REPLICATE", *self.answers))
        done, looks = await self.watch(port, "--seconds", "6", "--database-path", self.dsn_path)
        self.assertEqual((done.code, looks[-1]["alarms"], looks[-1]["trouble"]), (0, [], []))
        found = {(s["stream"], s["writer"]): s["committed"] for s in looks[-1]["streams"]}
        expected = {
            (s, w): token for s, writers in self.positions.items() for w, token in writers.items()
        }
        self.assertEqual(found, expected)
        self.assertGreater(len(expected), 10)

    def sql(self, statement: str) -> None:
        with psycopg2.connect(self.dsn) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
        connection.close()

    async def test_ignores_positions_that_advance_without_rows_over_tcp(self) -> None:
        await self.setUpDatabase()
        # A room's tags, which are rows of another stream; an event that became another one.
        self.sql("UPDATE stream_positions SET stream_id = stream_id + 2 WHERE stream_id > 0")
        port = self.serve(ScriptedServer("REPLICATE", *self.answers))
        done, looks = await self.watch(port, "--seconds", "8", "--database-path", self.dsn_path)
        self.assertEqual((done.code, looks[-1]["alarms"], looks[-1]["trouble"]), (0, [], []))

    async def test_names_a_locked_table_and_its_holder(self) -> None:
        await self.setUpDatabase()
        holder = psycopg2.connect(self.dsn, application_name="somebody")
        self.addCleanup(holder.close)
        holder.cursor().execute("LOCK TABLE receipts_linearized IN ACCESS EXCLUSIVE MODE")
        port = self.serve(ScriptedServer("REPLICATE", *self.answers))
        done, looks = await self.watch(port, "--seconds", "6", "--database-path", self.dsn_path)
        self.assertEqual((done.code, looks[-1]["alarms"]), (1, []))
        (trouble,) = looks[-1]["trouble"]
        expected = (
            "nobody can read table receipts_linearized, so how far receipts is in the database"
        )
        self.assertTrue(trouble.startswith(expected), trouble)
        self.assertIn("(somebody)", trouble)
        found = {s["stream"]: s["committed"] for s in looks[-1]["streams"]}
        self.assertIsNone(found["receipts"])
        self.assertIsNotNone(found["events"])

    async def test_reports_a_stream_that_is_not_announced(self) -> None:
        await self.setUpDatabase()
        silent = next(line for line in self.answers if line.startswith("POSITION events "))
        *words, last = silent.split(" ")
        behind = " ".join([*words, str(int(last) - 2)])
        answers = [behind if line == silent else line for line in self.answers]
        port = self.serve(ScriptedServer("REPLICATE", *answers))
        done, looks = await self.watch(port, "--seconds", "10", "--database-path", self.dsn_path)
        self.assertEqual(done.code, 1)
        (alarm,) = looks[-1]["alarms"]
        self.assertIn(f"events of {words[2]} is at {last} in the database", alarm)
        # From when the database was read, which may take a while.
        known = next(
            n
            for n, look in enumerate(looks)
            if look["connected"] and any(each["committed"] for each in look["streams"])
        )
        first = next(n for n, look in enumerate(looks) if look["alarms"])
        self.assertLessEqual(first - known, 4)  # looks, one a second

    async def test_refuses_a_database_that_is_not_a_synapses(self) -> None:
        path = Path(self.directory / "other")
        path.touch(mode=0o600)
        path.write_text(await fresh_database(self))
        port = self.serve(ScriptedServer("REPLICATE", "POSITION events w1 2 2"))
        done, looks = await self.watch(port, "--seconds", "6", "--database-path", path)
        self.assertEqual((done.code, looks[-1]["database_read"]), (1, False))
        self.assertEqual(len(looks[-1]["trouble"]), 1)
