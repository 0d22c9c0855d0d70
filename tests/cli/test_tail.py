"""``synrepl tail``: a process against a real master, or against a server that plays from a script."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from twisted.internet import reactor
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import SynchronousTestCase

from synrepl.cli.tail.lines import JsonLines, ShownRow, TextLines
from synrepl.tools.tap.recording import read_recording
from synrepl.wire.commands import Position
from synrepl.wire.dialects import LEGACY, MODERN
from tests.cli.cli_case import CliCase, Command, CommandResult, InProcessMaster, free_port
from tests.wire.recordings import CAPTURES


def shown(*lines: str) -> list[list[Any]]:
    """The printed JSON rows as lists, without commands."""
    decoded = [json.loads(line) for line in lines]
    return [list(each.values()) for each in decoded if "row" in each]


def order(number: int) -> list[list[Any]]:
    """A fact of one row."""
    return [[f"o{number}", number, None]]


class TailOfNewRows(CliCase):
    """``synrepl tail`` without --from."""

    async def ready(self, *arguments: object) -> Command:
        """Start a tail of ``orders``, and wait for its POSITION."""
        command = self.start("tail", *arguments, "orders", "--commands")
        while b"POSITION orders" not in command.out and b'"stream":"orders"' not in command.out:
            await command.lines(command.out.count(b"\n") + 1)
        return command

    async def test_prints_new_rows_as_text_lines(self) -> None:
        master = await self.master()
        await master.append(order(1))
        command = await self.ready(master.address, "--count", "3")
        await master.append(order(2), [["é", 3, {"a": ["\x1b"]}], ["b", -4, None]])
        done = await command.done()
        self.assertEqual((done.code, done.err), (0, ""))
        clock = r"\d\d:\d\d:\d\d\.\d{3}"
        golden = [
            rf"{clock} SERVER example\.com",
            rf"{clock} POSITION orders master 1 1",
            rf'{clock} orders       master        2 \["o2",2,null\]',
            rf'{clock} orders       master        3 \["é",3,{{"a":\["\\u001b"\]}}\]',
            rf'{clock} orders       master        3 \["b",-4,null\]',
        ]
        lines = done.out.splitlines()
        self.assertEqual(len(lines), len(golden), done.out)
        for line, pattern in zip(lines, golden, strict=True):
            self.assertRegex(line, f"^{pattern}$")

    async def test_prints_new_rows_as_json_lines(self) -> None:
        master = await self.master()
        command = await self.ready(master.address, "--count", "2", "--json")
        await master.append(order(1), order(2))
        done = await command.done()
        self.assertEqual((done.code, done.err), (0, ""))
        lines = done.out.splitlines()
        self.assertEqual(lines[0], '{"command":"SERVER","name":"example.com"}')
        position = '{"command":"POSITION","stream":"orders","writer":"master","prev":0,"new":0}'
        self.assertIn(position, lines)
        self.assertEqual(
            lines[-2:],
            [
                '{"stream":"orders","writer":"master","token":1,"row":["o1",1,null]}',
                '{"stream":"orders","writer":"master","token":2,"row":["o2",2,null]}',
            ],
        )

    async def test_shows_every_stream_by_default(self) -> None:
        master = await self.master()
        await master.append(order(1))
        arguments = ("tail", "-c", master.path, "--from", "0", "--json", "--count", "1")
        done = await self.run_command(*arguments)
        golden = '{"stream":"orders","writer":"master","token":1,"row":["o1",1,null]}\n'
        self.assertEqual(done, CommandResult(0, golden, ""))

    async def test_exits_silently_on_ctrl_c(self) -> None:
        master = await self.master()
        command = await self.ready(master.address)
        command.signal("INT")
        done = await command.done()
        self.assertEqual((done.code, done.err), (130, ""))

    async def test_exits_on_sigterm(self) -> None:
        master = await self.master()
        command = await self.ready(master.address)
        command.signal("TERM")
        self.assertEqual((await command.done()).code, 143)

    async def test_exits_when_stdout_is_closed(self) -> None:
        master = await self.master()
        command = await self.ready(master.address)
        command.close_output()
        await master.append(order(1))
        done = await command.done()
        self.assertEqual((done.code, done.err), (1, ""))

    async def test_reports_rows_that_were_missed(self) -> None:
        master = await self.master()
        command = await self.ready(master.address, "--json")
        await master.stop()
        await command.stderr_containing("connection lost: server shutting down; connecting again")
        await master.start(at=free_port())  # not where the tail looks
        await master.append(order(1), order(2))
        await master.stop()
        await master.start()
        errors = await command.stderr_containing("missed: orders of master, above 0 up to 2;")
        self.assertIn("again\n", errors)
        await master.append(order(3))
        while not (rows := shown(*command.out.decode().split("\n")[:-1])):
            await command.lines(command.out.count(b"\n") + 1)
        self.assertEqual(rows, [["orders", "master", 3, order(3)[0]]])


class TailOfMissedRows(CliCase):
    """Rows written before the start or during an outage."""

    async def test_fetches_rows_after_a_token_over_http(self) -> None:
        master = await self.master()
        await master.append(*map(order, range(1, 6)))
        command = self.start("tail", "-c", master.path, "orders", "--json", "--from", "2")
        await command.lines(3)
        await master.append(order(6))
        rows = shown(*await command.lines(4))
        self.assertEqual(rows, [["orders", "master", n, order(n)[0]] for n in range(3, 7)])

    async def test_fetches_rows_after_a_vector_with_a_workers_configuration(self) -> None:
        master = await self.master()
        await master.append(*map(order, range(1, 6)))
        done = await self.run_command(
            *("tail", "-c", self.worker(master), "orders", "--json"),
            *("--from", "0~master.3~sql.1", "--count", "2"),
        )
        self.assertEqual((done.code, done.err), (0, ""))
        rows = shown(*done.out.splitlines())
        self.assertEqual(rows, [["orders", "master", n, order(n)[0]] for n in (4, 5)])

    async def test_gets_rows_after_a_token_in_the_legacy_dialect(self) -> None:
        master = await self.master()
        await master.append(order(1), order(2), [order(3)[0], order(4)[0]])
        for streams in ((), ("orders",)):
            done = await self.run_command(
                *("tail", master.address, *streams, "--dialect", "legacy"),
                *("--json", "--from", "1", "--count", "3"),
            )
            self.assertEqual((done.code, done.err), (0, ""))
            rows = shown(*done.out.splitlines())
            tokens = ((2, 2), (3, 3), (3, 4))
            self.assertEqual(rows, [["orders", None, t, order(n)[0]] for t, n in tokens])

    async def test_shows_rows_written_while_the_master_was_away(self) -> None:
        for dialect in ("modern", "legacy"):
            master = await self.master()
            command = self.start(
                *("tail", "-c", master.path, "orders", "--json"),
                *("--from", "0", "--dialect", dialect),
            )
            await master.append(order(1))
            await command.lines(1)
            await master.stop()
            await command.stderr_containing(
                "connection lost: server shutting down; connecting again"
            )
            await master.start(at=free_port())
            await master.append(order(2), order(3))
            await master.stop()
            await master.start()
            await command.lines(3)
            await master.append(order(4))
            rows = shown(*await command.lines(4))
            self.assertEqual([row[2:] for row in rows], [[n, order(n)[0]] for n in range(1, 5)])
            await command.kill()
            await master.stop()

    async def test_fetches_many_pages(self) -> None:
        master = await self.master()
        await master.append(*map(order, range(1, 5001)))
        done = await self.run_command(
            *("tail", "-c", master.path, "orders", "--json", "--from", "0", "--count", "4999")
        )
        tokens = [json.loads(line)["token"] for line in done.out.splitlines()]
        self.assertEqual(tokens, list(range(1, 5000)))

    def worker(self, master: InProcessMaster) -> Any:
        """A worker's configuration that catches up over HTTP."""
        path = self.directory / "worker.yaml"
        path.write_text(
            f"server_name: example.com\ninstance_name: w\ncatch_up: http\ncatalogue: none\n"
            f"master: {{port: {master.port}, http_url: 'http://127.0.0.1:{master.http_port}'}}\n"
            f"streams: [{{name: orders, columns: {{order_id: text, amount: bigint, note: 'json?'}}}}]\n"
        )
        return path


class TailRefusals(CliCase):
    """Errors: one line and an exit code."""

    async def test_refuses_bad_arguments(self) -> None:
        nobody = f"127.0.0.1:{free_port()}"
        for arguments, code, message in (
            ((), 2, "name a master"),
            (("orders",), 2, "name a master"),
            (("localhost:x",), 2, "is not HOST:PORT"),
            (("localhost:70000",), 2, "is not HOST:PORT"),
            ((nobody, "--from", "3"), 2, "--from 3: a transitional or modern master sends only"),
            ((nobody, "--from", "x"), 1, "'x' is not a position"),
            ((nobody, "--dialect", "legacy", "--from", "0~w.1"), 2, "one token per stream"),
            ((nobody, "No such"), 2, "stream name 'No such' is not a valid name"),
            ((nobody, "--count", "0"), 2, "--count"),
            ((nobody,), 1, f"synrepl: error: cannot connect to {nobody}: "),
        ):
            done = await self.run_command("tail", *arguments)
            self.assertEqual((done.code, done.out), (code, ""), arguments)
            self.assertIn(message, done.err)

    async def test_reports_the_refusal_of_the_master(self) -> None:
        master = await self.master()
        done = await self.run_command("tail", master.address, "--dialect", "legacy", "order")
        message = (
            f"the master at {master.address} says: there is no stream 'order'; did you mean orders?"
        )
        self.assertEqual(done, CommandResult(1, "", f"synrepl: error: {message}\n"))

    async def test_refuses_a_stream_that_the_configuration_lacks(self) -> None:
        master = await self.master()
        done = await self.run_command("tail", "-c", master.path, "order")
        self.assertEqual(
            done,
            CommandResult(
                1, "", "synrepl: error: there is no stream 'order'; did you mean orders?\n"
            ),
        )

    async def test_refuses_a_stream_that_the_master_lacks(self) -> None:
        master = await self.master()
        done = await self.run_command("tail", master.address, "order", "orders")
        self.assertEqual((done.code, done.out), (1, ""))
        announces = f"the master at {master.address} announces no stream 'order'"
        self.assertIn(f"{announces}; did you mean orders?", done.err)

    async def test_waits_for_a_stream_without_writer(self) -> None:
        master = await self.master(stream_writers="{orders: [worker1]}")
        command = self.start("tail", "-c", master.path, "orders")
        await command.stderr_containing(
            "the master has not announced a stream 'orders'; waiting for it"
        )

    async def test_refuses_another_server(self) -> None:
        master = await self.master()
        done = await self.run_command("tail", master.address, "--server-name", "other.org")
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("Wrong remote: the server is 'example.com', 'other.org' was", done.err)


class TailOfScriptedServers(CliCase):
    """Servers that follow a script."""

    async def play(self, *arguments: object, script: bytes) -> Command:
        """Start a tail of a server that sends a script to each client."""
        factory = Factory()
        factory.protocol = partial(_ScriptedServer, script)
        any_reactor: Any = reactor
        port = any_reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return self.start("tail", f"127.0.0.1:{port.getHost().port}", *arguments)

    async def test_shows_repeated_and_reordered_rows_once(self) -> None:
        command = await self.play(
            *("--json", "--count", "6"),
            script=b"SERVER x\nPING 1\nRDATA caches m 9 [1]\nPOSITION caches m 5 5\n"
            b"RDATA caches m 7 [2]\nRDATA caches m 6 [3]\nRDATA caches m 6 [3]\n"
            b"POSITION caches m 7 7\nRDATA caches m 4 [4]\nRDATA caches m 8 [5]\n",
        )
        done = await command.done()
        self.assertEqual(
            [row[2:] for row in shown(*done.out.splitlines())][:2], [[9, [1]], [7, [2]]]
        )
        self.assertEqual(done.out.count("\n"), 6)

    async def test_shows_a_new_writer_and_an_unknown_stream(self) -> None:
        command = await self.play(
            *("--json", "--count", "3"),
            script=b"SERVER x\nRDATA things a 1 [0]\nPOSITION things a 3 3\n"
            b"RDATA things b 1 [1]\nRDATA things a batch [2]\nRDATA things b 4 [3]\n"
            b"RDATA things a 5 [4]\nRDATA things a 5 [5]\n",
        )
        rows = shown(*(await command.done()).out.splitlines())
        self.assertEqual(
            rows, [["things", "b", 1, [1]], ["things", "b", 4, [3]], ["things", "a", 5, [2]]]
        )

    async def test_does_not_report_rows_that_follow_their_position(self) -> None:
        script = (
            b"SERVER x\nPING 1\nPOSITION events m 8 8\nRDATA events m 8 [0]\n"
            b"RDATA events m 9 [1]\nPOSITION events m 12 12\nRDATA events m 10 [2]\n"
            b"RDATA events m 10 [9]\nRDATA events m batch [3]\nRDATA events m 12 [4]\n"
            b"POSITION events m 12 12\nRDATA events m 13 [5]\n"
        )
        done = await (await self.play("--json", "--count", "6", script=script)).done()
        rows = [row[2:] for row in shown(*done.out.splitlines())]
        self.assertEqual(rows, [[8, [0]], [9, [1]], [10, [2]], [12, [3]], [12, [4]], [13, [5]]])
        self.assertEqual((done.code, done.err), (0, ""))

    async def test_tokens_without_rows_are_not_missed(self) -> None:
        script = b"SERVER x\nPING 1\n"
        for token in (8, 12):
            for stream in ("events", "account_data", "receipts"):
                script += f"POSITION {stream} m {token} {token}\n".encode()
        script += b"RDATA account_data m 13 [1]\n"
        done = await (await self.play("--json", "--count", "1", script=script)).done()
        self.assertEqual([row[2] for row in shown(*done.out.splitlines())], [13])
        self.assertEqual((done.code, done.err), (0, ""))

    async def test_a_row_too_long_for_a_line_is_missed(self) -> None:
        script = (
            b"SERVER x\nPING 1\nPOSITION events m 8 8\nPOSITION events m 9 9\n"
            b"RDATA events m 10 [1]\n"
        )
        done = await (await self.play("--json", "--count", "1", script=script)).done()
        self.assertIn("missed: events of m, above 8 up to 9;", done.err)

    async def test_does_not_report_gaps_when_others_send_replicate(self) -> None:
        for version in ("1.11.1", "1.20.1", "1.43.0"):
            path = CAPTURES / version / "live-asked.jsonl.gz"
            sent = [
                recorded.text
                for recorded in read_recording(path)
                if recorded.text.startswith((b"RDATA events", b"RDATA receipts"))
            ]
            replayed = self.start("tap", "replay", path, "--speed", "0")
            where = (
                (await replayed.stderr_containing("dialect")).split("listens on ")[1].split(",")[0]
            )
            legacy = ("--dialect", "legacy") if version == "1.11.1" else ()
            done = await self.run_command(
                *("tail", where, "events", "receipts", "--json"),
                *(*legacy, "--count", len(sent)),
            )
            rows = [json.loads(line)["row"] for line in done.out.splitlines()]
            sent_rows = [json.loads(b"[" + text.split(b" [", 1)[1]) for text in sent]
            self.assertEqual((rows, done.err), (sent_rows, ""), version)

    async def test_shows_rows_that_are_not_json(self) -> None:
        script = "SERVER x\nPOSITION s m 0 0\nRDATA s m 1 [\x9b31m\u202e\n".encode()
        done = await (await self.play("--json", "--count", "1", script=script)).done()
        self.assertEqual(json.loads(done.out)["malformed"], "[\x9b31m\u202e")
        done = await (await self.play("--count", "1", script=script)).done()
        self.assertTrue(done.out.endswith(r"s            m             1 [\x9b31m\u202e" + "\n"))

    async def test_escapes_control_characters_of_an_error(self) -> None:
        command = await self.play(script=b"SERVER x\nERROR no \x1b[31mway\n")
        done = await command.done()
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertRegex(done.err, r"^synrepl: error: the master at \S+ says: no \\x1b\[31mway\n$")

    async def test_refuses_a_server_that_does_not_speak_the_protocol(self) -> None:
        command = await self.play(script=b"HTTP/1.1 400 Bad Request\n")
        done = await command.done()
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("invalid command: 'HTTP/1.1' is not a command", done.err)

    async def test_refuses_a_server_that_closes_without_a_greeting(self) -> None:
        done = await (await self.play(script=b"")).done()
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("does not speak as a master does", done.err)


class TailLines(SynchronousTestCase):
    """The format of rows."""

    def test_columns_grow_and_keep_their_width(self) -> None:
        lines = TextLines(MODERN, colour=False)
        made = [
            lines.row(ShownRow(stream, "w", token, b"[]"), 0.25)[13:]
            for stream, token in (("a", 1), ("a_rather_long_name", 12345678), ("b", 2))
        ]
        self.assertEqual(
            made,
            [
                "a            w             1 []",
                "a_rather_long_name w        12345678 []",
                "b                  w               2 []",
            ],
        )

    def test_omits_the_writer_in_the_legacy_dialect(self) -> None:
        line = TextLines(LEGACY, colour=False).row(ShownRow("a", None, 1, b"[]"), 0.0)
        self.assertEqual(line[13:], "a                 1 []")
        line = TextLines(LEGACY, colour=False).command(Position("a", None, None, 1), 0.0)
        self.assertEqual(line[13:], "POSITION a 1")

    def test_numbers_keep_their_digits(self) -> None:
        row = b'[123456789012345678901234567890, 1.10,"\\ud83d\\ude00"]'
        line = JsonLines().row(ShownRow("a", None, 1, row), 0.0)
        self.assertTrue(line.endswith(f'"row":{row.decode()}}}'), line)


class _ScriptedServer(Protocol):
    """Sends its script in answer to REPLICATE; closes after an ERROR, or if the script is empty."""

    def __init__(self, script: bytes) -> None:
        self._script = script
        self._received = b""

    def dataReceived(self, data: bytes) -> None:
        transport: Any = self.transport
        self._received += data
        if b"REPLICATE" in self._received:
            self._received = b""
            transport.write(self._script)
            if not self._script or b"ERROR" in self._script:
                transport.loseConnection()
