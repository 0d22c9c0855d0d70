"""``synrepl append``: a process against a real master."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import SynchronousTestCase

from synrepl.cli.append.input import MAX_LINE, BadLine, Line, LineReader
from tests.cli.cli_case import CliCase, CommandResult, free_port


def ids(done: CommandResult) -> list[int]:
    """The IDs that were printed, in order."""
    return [each for line in done.out.splitlines() for each in json.loads(line)["ids"]]


def row(number: int) -> list[Any]:
    """An order as it is stored."""
    return [f"o{number}", number, None]


def text(*numbers: int) -> bytes:
    """Orders as lines."""
    return b"".join(b'["o%d",%d]\n' % (number, number) for number in numbers)


class AppendCommand(CliCase):
    """``synrepl append`` with valid input."""

    async def test_each_line_becomes_a_fact(self) -> None:
        master = await self.master()
        given = b'["a",1,{"deep":[1]}]\n\n  \n["b",2]\r\n[["c",3],["d",4,null]]\n["e",5]'
        done = await self.run_command("append", "-c", master.path, "orders", stdin=given)
        answer = '{{"stream":"orders","writer":"master","ids":[{}]}}\n'
        self.assertEqual(done, CommandResult(0, "".join(map(answer.format, (1, 2, 3, 4))), ""))
        self.assertEqual(
            await master.stored(),
            [
                [["a", 1, {"deep": [1]}]],
                [["b", 2, None]],
                [["c", 3, None], ["d", 4, None]],
                [["e", 5, None]],
            ],
        )

    async def test_answers_each_line_of_an_open_pipe_at_once(self) -> None:
        master = await self.master()
        command = self.start("append", "-c", master.path, "orders")
        for number in (1, 2, 3):
            command.write(text(number))
            found = await command.lines(number)
            self.assertEqual(json.loads(found[-1])["ids"], [number])
        command.write(b'["half",')
        command.write(b"4]")
        command.end_of_input()
        done = await command.done()
        self.assertEqual((done.code, ids(done)), (0, [1, 2, 3, 4]))

    async def test_sends_many_lines_in_few_requests(self) -> None:
        master = await self.master()
        path = self.directory / "rows"
        path.write_bytes(text(*range(12_000)))
        done = await self.run_command("append", "-c", master.path, "orders", path)
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(ids(done), list(range(1, 12_001)))
        self.assertEqual(await master.stored(), [[row(number)] for number in range(12_000)])
        self.assertLess(master.requests, 20)

    async def test_appends_nothing_for_blank_input(self) -> None:
        master = await self.master()
        for nothing in (b"", b"\n\n", b" \r\n"):
            done = await self.run_command("append", "-c", master.path, "orders", stdin=nothing)
            self.assertEqual(done, CommandResult(0, "", ""))


class AppendBadLines(CliCase):
    """The command stops at a bad line, and appends the lines before it."""

    async def test_names_the_number_of_a_bad_line(self) -> None:
        master = await self.master()
        a_row = "a row of stream 'orders'"
        for bad, message in (
            (b'["x","y"]', f"{a_row} cannot be accepted, at $[1]: Expected `int`, got `str`"),
            (b'[["x",1],["y"]]', f"{a_row} cannot be accepted, at $[1]: Expected `array` of "),
            (b"[]", f"{a_row} cannot be accepted, at $: Expected `array` of at least"),
            (b'{"order_id":"x"}', f"{a_row} cannot be accepted, at $: Expected `array`"),
            (b'["x\\u0000",1]', f"{a_row} cannot be accepted, at $[0]: text may not hold"),
            (b'["x",9223372036854775808]', f"{a_row} cannot be accepted, at $[1]: "),
            (b'["x",1', f"{a_row} is not valid JSON: "),
            (b'["x",1] ["y",2]', f"{a_row} is not valid JSON: "),
            (b'["\xff",1]', f"{a_row} is not valid JSON: 'utf-8' codec"),
            (b'["x",1,' + b"[" * 200 + b"]" * 200 + b"]", f"{a_row} cannot be accepted, at $[2]"),
        ):
            given = text(1) + b"\n" + text(2) + bad + b"\n" + text(3)
            done = await self.run_command("append", "-c", master.path, "orders", stdin=given)
            self.assertEqual(done.code, 1, bad)
            self.assertEqual(len(ids(done)), 2, bad)
            self.assertTrue(done.err.startswith(f"synrepl: error: line 4: {message}"), done.err)
            self.assertEqual(done.err.count("\n"), 1)
        stored = await master.stored()
        self.assertEqual(stored, [[row(1)], [row(2)]] * 10)

    async def test_finds_the_line_that_only_the_master_refuses(self) -> None:
        """The configuration declares a column that the master does not have."""
        master = await self.master()
        newer = self.directory / "newer.yaml"
        columns = "{order_id: text, amount: bigint, note: 'json?', more: 'text?'}"
        newer.write_text(f"streams: [{{name: orders, columns: {columns}}}]\n")
        for at in (1, 2, 7, 100):
            lines = [b'["x",%d]\n' % number for number in range(1, 101)]
            lines[at - 1] = b'["x",0,null,"more"]\n'
            given = b"".join(lines)
            done = await self.run_command(
                "append", "-c", master.path, "-c", newer, "orders", stdin=given
            )
            self.assertEqual((done.code, len(ids(done))), (1, at - 1))
            self.assertRegex(
                done.err, rf"^synrepl: error: line {at}: the row at .*at most length 3;.*\n$"
            )

    async def test_refuses_a_line_above_the_limit(self) -> None:
        master = await self.master()
        path = self.directory / "rows"
        path.write_bytes(text(1) + b'["' + b"x" * MAX_LINE)
        done = await self.run_command("append", "-c", master.path, "orders", path)
        self.assertEqual((done.code, ids(done)), (1, [1]))
        self.assertEqual(
            done.err,
            "synrepl: error: line 2: it is longer than 16777216 bytes; a line is one JSON array\n",
        )

    async def test_refuses_a_line_that_no_request_can_hold(self) -> None:
        master = await self.master(http_extra="max_body: 1KiB")
        given = text(*range(100)) + b'["%b",1]\n' % (b"x" * 1100) + text(1)
        done = await self.run_command("append", "-c", master.path, "orders", stdin=given)
        self.assertEqual((done.code, len(ids(done))), (1, 100))
        self.assertRegex(done.err, r"^synrepl: error: line 101: the body is longer than the 1024 ")


class AppendWithRetries(CliCase):
    """When the master goes away, nothing is lost or appended twice."""

    async def test_does_not_append_twice_when_an_answer_is_lost(self) -> None:
        master = await self.master()
        relay = Relay(master.http_port)
        self.addCleanup(relay.stop)
        relay.swallow = 2
        url = f"http://127.0.0.1:{relay.port}"
        command = self.start("append", "-c", master.path, "orders", "--url", url)
        command.write(text(1, 2))
        await command.lines(2)
        relay.swallow = 1
        command.write(text(3))
        command.end_of_input()
        done = await command.done()
        self.assertEqual((done.code, done.err, ids(done)), (0, "", [1, 2, 3]))
        self.assertEqual(await master.stored(), [[row(1)], [row(2)], [row(3)]])
        self.assertEqual(relay.swallowed, 3)

    async def test_continues_when_the_master_is_back(self) -> None:
        master = await self.master()
        command = self.start("append", "-c", master.path, "orders")
        command.write(text(1))
        await command.lines(1)
        await master.stop()
        command.write(text(2))
        await master.start()
        command.end_of_input()
        done = await command.done()
        self.assertEqual((done.code, ids(done)), (0, [1, 2]))

    async def test_gives_up_at_the_timeout(self) -> None:
        master = await self.master()
        await master.stop()
        given = b"\n" + text(1, 2)
        done = await self.run_command(
            "append", "-c", master.path, "orders", "--timeout", "0.3", stdin=given
        )
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertRegex(
            done.err,
            r"^synrepl: error: lines 2 to 3: given up after 0.3 s \(nothing answers at http:.*\n$",
        )


class AppendRefusals(CliCase):
    """Errors that do not concern a line, and interruptions."""

    async def test_refuses_an_unknown_stream(self) -> None:
        master = await self.master()
        done = await self.run_command("append", "-c", master.path, "order", stdin=text(1))
        self.assertEqual(
            done,
            CommandResult(
                1, "", "synrepl: error: there is no stream 'order'; did you mean orders?\n"
            ),
        )

    async def test_refuses_a_configuration_without_http(self) -> None:
        master = await self.master()
        lines = master.path.read_text().splitlines()
        master.path.write_text("\n".join(line for line in lines if not line.startswith("http:")))
        done = await self.run_command("append", "-c", master.path, "orders", stdin=text(1))
        message = "the configuration has no HTTP listener to talk to: set 'http' in it"
        self.assertEqual(done, CommandResult(2, "", f"synrepl: error: {message}\n"))

    async def test_sends_the_secret_of_the_configuration(self) -> None:
        secret = self.directory / "secret"
        secret.write_text("sesame")
        secret.chmod(0o600)
        master = await self.master(http_extra="secret_path: secret")
        done = await self.run_command("append", "-c", master.path, "orders", stdin=text(1))
        self.assertEqual((done.code, ids(done)), (0, [1]))
        secret.write_text("wrong")
        done = await self.run_command("append", "-c", master.path, "orders", stdin=text(1))
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("wants its secret", done.err)

    async def test_reports_that_another_process_writes_the_stream(self) -> None:
        master = await self.master(stream_writers="{orders: [other]}")
        done = await self.run_command("append", "-c", master.path, "orders", stdin=text(1, 2))
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("409 NotAWriter", done.err)

    async def test_exits_when_stdout_is_closed(self) -> None:
        master = await self.master()
        command = self.start("append", "-c", master.path, "orders")
        command.write(text(1))
        await command.lines(1)
        command.close_output()
        command.write(text(2))
        done = await command.done()
        self.assertEqual((done.code, done.err), (1, ""))

    async def test_exits_silently_on_ctrl_c(self) -> None:
        master = await self.master()
        command = self.start("append", "-c", master.path, "orders")
        command.write(text(1))
        await command.lines(1)
        command.signal("INT")
        done = await command.done()
        self.assertEqual((done.code, done.err), (130, ""))


class LineReaderOnAPipe(SynchronousTestCase):
    """:class:`LineReader` on a pipe."""

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=20),
        st.data(),
        st.integers(1, 5),
        st.integers(1, 30),
    )
    def test_reads_all_lines_however_they_arrive(
        self, lines: list[bytes], data: Any, most: int, size: int
    ) -> None:
        given = b"\n".join(lines)
        expected = [Line(n, line) for n, line in enumerate(lines, 1) if line.strip()]
        reading, writing = os.pipe()
        reader = LineReader(reading)
        found: list[Line] = []
        try:
            while given:
                cut = data.draw(st.integers(1, len(given)))
                os.write(writing, given[:cut])
                given = given[cut:]
                # Complete lines are available without waiting.
                while len(found) < len(expected) - 1 and _complete(lines, given) > len(found):
                    taken = reader.take_available(most, size)
                    self.assertTrue(0 < len(taken) <= most)
                    self.assertLess(sum(len(line.text) for line in taken[:-1]), size)
                    found += taken
            os.close(writing)
            writing = -1
            while taken := reader.take_available(most, size):
                found += taken
            self.assertEqual(found, expected)
        finally:
            os.close(reading)
            if writing >= 0:
                os.close(writing)

    def test_reads_no_further_than_requested(self) -> None:
        path = self.mktemp()
        with open(path, "wb") as file:
            file.write(b"123456789\n" * 1_000_000)
        descriptor = os.open(path, os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        reader = LineReader(descriptor)
        self.assertEqual(len(reader.take_available(10**9, 900)), 100)
        self.assertLess(reader.read, 2**20)

    def test_refuses_a_line_without_end(self) -> None:
        descriptor = os.open("/dev/zero", os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        error = self.assertRaises(BadLine, LineReader(descriptor).take_available, 9, 99)
        self.assertEqual(error.facts["number"], 1)

    def test_returns_good_lines_before_a_line_that_is_too_long(self) -> None:
        path = self.mktemp()
        for bad in (b"x" * (MAX_LINE + 1), b"x" * (MAX_LINE + 1) + b"\nc\n"):
            with open(path, "wb") as file:
                file.write(b"a\n\nb\n" + bad)
            descriptor = os.open(path, os.O_RDONLY)
            self.addCleanup(os.close, descriptor)
            reader = LineReader(descriptor)
            self.assertEqual(reader.take_available(9, 99), [Line(1, b"a"), Line(3, b"b")])
            error = self.assertRaises(BadLine, reader.take_available, 9, 99)
            self.assertEqual(error.facts["number"], 4)


def _complete(lines: list[bytes], rest: bytes) -> int:
    """The number of non-blank lines that were written completely."""
    written = b"\n".join(lines)
    written = written[: len(written) - len(rest)]
    return sum(bool(line.strip()) for line in written.split(b"\n")[:-1])


class Relay:
    """Relays connections to a port, and drops the answers on the next ``swallow`` connections."""

    def __init__(self, target: int) -> None:
        self.swallow = self.swallowed = 0
        self.port = free_port()
        factory = Factory()
        factory.protocol = partial(_Near, self, target)
        any_reactor: Any = reactor
        self._listener = any_reactor.listenTCP(self.port, factory, interface="127.0.0.1")

    def stop(self) -> Any:
        """Listen no more."""
        return self._listener.stopListening()


class _Near(Protocol):
    """The client's side of one connection."""

    def __init__(self, relay: Relay, target: int) -> None:
        self.relay = relay
        self._endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", target)

    def connectionMade(self) -> None:
        self._far: Deferred[Any] = connectProtocol(self._endpoint, _Far(self))

    def dataReceived(self, data: bytes) -> None:
        def send(far: Any) -> Any:
            far.transport.write(data)
            return far

        self._far.addCallback(send)

    def connectionLost(self, reason: object = None) -> None:
        self._far.addCallback(lambda far: far.transport.loseConnection())


class _Far(Protocol):
    """The master's side."""

    def __init__(self, near: Any) -> None:
        self._near = near

    def dataReceived(self, data: bytes) -> None:
        relay = self._near.relay
        if relay.swallow:
            relay.swallow -= 1
            relay.swallowed += 1
            self._near.transport.loseConnection()
        else:
            self._near.transport.write(data)

    def connectionLost(self, reason: object = None) -> None:
        self._near.transport.loseConnection()
