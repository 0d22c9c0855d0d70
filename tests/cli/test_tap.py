"""``synrepl tap``: as processes, and recording a real master."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol

from synrepl.cli.tap.record_tcp import TcpRecordingSource
from synrepl.tools.judge.rules import RULES
from synrepl.tools.tap.recording import RecordingEnded, RecordingFile, read_recording
from synrepl.tools.tap.recording_judge import RecordingJudge
from synrepl.wire.dialects import DIALECTS
from tests.cli.cli_case import CliCase, free_port
from tests.wire.recordings import CAPTURES

LIVE = CAPTURES / "1.43.0" / "live.jsonl.gz"


def lines(path: Path) -> list[tuple[str, str]]:
    """Direction and line of each object of a recording."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [(each["dir"], each["line"]) for each in map(json.loads, text.splitlines())]


class TapJudge(CliCase):
    async def test_counts_known_faults_of_a_real_server(self) -> None:
        done = await self.run_command("tap", "judge", LIVE)
        self.assertEqual((done.code, done.err), (0, ""))
        first, second = done.out.splitlines()
        self.assertEqual(first, f"{LIVE}: modern, 2356 lines: no breaches")
        sentence = RULES["unordered"].sentence
        self.assertEqual(
            second,
            f"  known of real servers: unordered, 27 times, first in line 75: {sentence}",
        )

    async def test_reports_breaches_and_exits_with_1(self) -> None:
        path = self.directory / "bad.jsonl"
        records = [json.loads(line) for line in gzip.decompress(LIVE.read_bytes()).splitlines()]
        records.insert(1_000, {**records[1_000], "dir": "C", "line": "POSITION e\x1b[m m 1 1"})
        records.append({**records[-1], "dir": "S", "line": "RDATA receipts master 1 []"})
        path.write_text("".join(json.dumps(each) + "\n" for each in records))
        done = await self.run_command("tap", "judge", LIVE, path)
        self.assertEqual((done.code, done.err), (1, ""))
        output = done.out.splitlines()[2:]
        self.assertEqual(
            output[0],
            f"{path}:1001: direction: invalid command: POSITION is not for the client to send",
        )
        self.assertRegex(output[1], f"^{path}:2358: order: receipts of master: 1 after [0-9]+$")
        self.assertEqual(output[2], f"{path}: modern, 2358 lines: 2 breaches")
        self.assertTrue(output[3].startswith("  breach: direction, once, first in line 1001: "))
        done = await self.run_command("tap", "judge", "--json", path)
        self.assertEqual((done.code, done.err), (1, ""))
        findings = [json.loads(line) for line in done.out.splitlines()]
        found = [
            (each["line"], each["rule"]) for each in findings if each.get("severity") == "breach"
        ]
        self.assertEqual(found, [(1001, "direction"), (2358, "order")])
        self.assertEqual(
            findings[-1],
            {
                "file": str(path),
                "dialect": "modern",
                "lines": 2358,
                "breaches": {
                    "direction": {"count": 1, "first": 1001},
                    "order": {"count": 1, "first": 2358},
                },
                "known": {"unordered": {"count": 27, "first": 75}},
            },
        )

    async def test_shows_all_known_faults_and_all_rules_on_request(self) -> None:
        done = await self.run_command("tap", "judge", "--all", LIVE)
        self.assertEqual(done.out.count(": unordered: "), 27)
        done = await self.run_command("tap", "judge", "--rules", "--json")
        names = [json.loads(line)["rule"] for line in done.out.splitlines()]
        self.assertEqual(names, list(RULES))
        done = await self.run_command("tap", "judge", "--rules")
        self.assertEqual(done.out.count("\n"), len(RULES) + 1)

    async def test_refuses_bad_arguments(self) -> None:
        scripted = CAPTURES / "1.43.0" / "errors.jsonl.gz"
        for arguments, code, message in (
            ((), 2, "name a recording"),
            (("missing",), 1, "synrepl: error: cannot open missing: No such file"),
            ((scripted,), 1, f"synrepl: error: {scripted} is made of scripted cases"),
            ((LIVE, "--dialect", "klingon"), 2, "klingon"),
        ):
            done = await self.run_command("tap", "judge", *arguments)
            self.assertEqual((done.code, done.out), (code, ""), arguments)
            self.assertIn(message, done.err)


class TapRecord(CliCase):
    async def play(self, script: bytes) -> str:
        """Start a server that sends a script in answer to REPLICATE; return its address."""
        factory = Factory()
        factory.protocol = partial(_ScriptedServer, script)
        any_reactor: Any = reactor
        port = any_reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return f"127.0.0.1:{port.getHost().port}"

    async def test_records_both_directions_until_the_end(self) -> None:
        where = await self.play(
            b"SERVER x.org\nPING 1\nPOSITION a m 1 1\nERROR server shutting down\n"
        )
        for name in ("r.jsonl", "r.jsonl.gz"):
            done = await self.run_command("tap", "record", "--tcp", where, name)
            self.assertEqual((done.code, done.out), (1, ""))
            error = (
                f"synrepl: error: the connection to {where} has ended: server shutting down;"
                f" what was said until then is in {name}\n"
            )
            self.assertTrue(done.err.endswith(f"synrepl: 9 lines are in {name}\n{error}"), done.err)
            found = lines(self.directory / name)
            self.assertEqual([d for d, _ in found], ["-", *"CCCSSSS", "-"])
            self.assertEqual(found[1], ("C", "NAME synrepl-tap"))
            self.assertEqual(found[3], ("C", "REPLICATE "))
            self.assertEqual(found[4], ("S", "SERVER x.org"))
            self.assertEqual(found[-1], ("-", "eof"))
            judged = await self.run_command("tap", "judge", name)
            self.assertEqual(judged.out, f"{name}: modern, 9 lines: no breaches\n")

    async def test_replaces_names_consistently(self) -> None:
        where = await self.play(b'SERVER x.org\nPOSITION a 1\nRDATA a 2 ["@u:x.org","@u:x.org"]\n')
        arguments = ("--dialect", "legacy", "--pseudonyms", "--name", "me")
        done = await self.run_command("tap", "record", "--tcp", where, "r.jsonl", *arguments)
        self.assertEqual(done.code, 1)
        found = lines(self.directory / "r.jsonl")
        self.assertEqual(found[1], ("C", "NAME me"))
        self.assertEqual(found[3], ("C", "REPLICATE ALL NOW"))
        self.assertNotIn("x.org", str(found))
        one, other = json.loads(found[6][1].split(" ", 3)[3])
        self.assertEqual(one, other)

    async def test_ends_the_recording_on_ctrl_c(self) -> None:
        path = self.directory / "replayed.jsonl"
        replayed = self.start("tap", "replay", LIVE, "--speed", "0")
        where = port_of(await replayed.stderr_containing("dialect"))
        command = self.start("tap", "record", "--tcp", where, path)
        await command.stderr_containing("recording")
        command.signal("INT")
        done = await command.done()
        found = lines(path)
        output = [f"recording {where}", f"{len(found)} lines are in {path}"]
        self.assertEqual((done.code, done.err), (130, "".join(f"synrepl: {x}\n" for x in output)))
        self.assertEqual((found[0], found[-1]), (("-", "connected"), ("-", "closed")))

    async def test_ends_after_the_given_seconds(self) -> None:
        replayed = self.start("tap", "replay", LIVE)
        where = port_of(await replayed.stderr_containing("dialect"))
        done = await self.run_command(
            "tap", "record", "--tcp", where, "r.jsonl", "--seconds", "0.01"
        )
        self.assertEqual((done.code, done.out), (0, ""))
        self.assertEqual(lines(self.directory / "r.jsonl")[-1], ("-", "closed"))

    async def test_refuses_bad_arguments_and_writes_nothing(self) -> None:
        nobody = f"127.0.0.1:{free_port()}"
        (self.directory / "there").write_text("precious")
        for arguments, code, message in (
            (("r",), 2, "give exactly one of the two"),
            (("r", "--tcp", nobody, "--redis", "redis://x"), 2, "exactly one of the two"),
            (("r", "--tcp", nobody, "--silent"), 2, "exactly one of the two"),
            (("r", "--tcp", "x"), 2, "'x' is not HOST:PORT"),
            (("r", "--tcp", nobody), 1, f"synrepl: error: cannot connect to {nobody}: "),
            (("there", "--tcp", nobody), 1, "cannot open there: File exists"),
        ):
            done = await self.run_command("tap", "record", *arguments)
            self.assertEqual((done.code, done.out), (code, ""), arguments)
            self.assertIn(message, done.err)
            self.assertFalse((self.directory / "r").exists())
        self.assertEqual((self.directory / "there").read_text(), "precious")

    async def test_our_own_master_breaks_no_rule(self) -> None:
        for dialect in ("modern", "legacy"):
            master = await self.master()
            await master.append([["o", 0, None]])
            path = self.directory / f"{dialect}.jsonl"
            heard, said = LineWaiter(), list[str]()
            file = RecordingFile(path, heard)
            source = TcpRecordingSource("127.0.0.1", master.port, DIALECTS[dialect], "tap")
            running = Deferred.fromCoroutine(source.record(reactor, file, None, said.append))
            await heard.until(lambda line: line.startswith(b"POSITION orders"))
            for number in range(1, 20):
                rows = [[f"o{number}", row, None] for row in range(number % 4 + 1)]
                await master.append(rows)
            await heard.until(lambda line: b'"o19"' in line)
            await master.stop()
            with self.assertRaises(RecordingEnded) as caught:
                await running
            self.assertIn("server shutting down", str(caught.exception))
            file.close()
            judging = RecordingJudge(path)
            self.assertEqual(judging.dialect.name, dialect)
            self.assertEqual(list(judging.findings()), [])
            texts = [recorded.text for recorded in read_recording(path)]
            rows_of_orders = [text for text in texts if text.startswith(b"RDATA orders")]
            self.assertEqual(len(rows_of_orders), sum(n % 4 + 1 for n in range(1, 20)))
            recording = f"recording 127.0.0.1:{master.port}"
            self.assertEqual(said, [recording, f"{len(texts)} lines are in {path}"])


class TapReplay(CliCase):
    async def test_tail_shows_what_was_recorded(self) -> None:
        command = self.start("tap", "replay", LIVE, "--speed", "0")
        said = await command.stderr_containing("dialect")
        self.assertIn("localhost:18501 listens on 127.0.0.1:", said)
        done = await self.run_command("tail", port_of(said), "receipts", "--json", "--count", "10")
        self.assertEqual(done.code, 0)
        recorded = [
            recorded.text.split(b" ", 4)
            for recorded in read_recording(LIVE)
            if recorded.text.startswith(b"RDATA receipts")
        ]
        expected = [(int(words[3]), json.loads(words[4])) for words in recorded[:10]]
        output = [json.loads(line) for line in done.out.splitlines()]
        self.assertEqual([(each["token"], each["row"]) for each in output], expected)

    async def test_replays_a_redis_recording_in_the_modern_dialect(self) -> None:
        path = CAPTURES / "1.163.2" / "redis.jsonl.gz"
        command = self.start("tap", "replay", path, "--speed", "0", "--server-name", "x.org")
        said = await command.stderr_containing("dialect")
        self.assertRegex(said, r"x\.org listens on 127\.0\.0\.1:\d+, modern dialect")
        done = await self.run_command("tail", port_of(said), "events", "--json", "--count", "5")
        writers = {json.loads(line)["writer"] for line in done.out.splitlines()}
        self.assertEqual((done.code, writers <= {"persister1", "persister2"}), (0, True))

    async def test_refuses_bad_arguments(self) -> None:
        (self.directory / "r.jsonl").write_text('{"t":1,"dir":"S","line":"POSITION a 1"}\n')
        (self.directory / "q.jsonl").write_text('{"t":1,"dir":"S","line":"SERVER x"}\n')
        port = free_port()
        any_reactor: Any = reactor
        taken = any_reactor.listenTCP(port, Factory(), interface="127.0.0.1")
        self.addCleanup(taken.stopListening)
        for arguments, code, message in (
            (("missing",), 1, "cannot open missing"),
            (("r.jsonl",), 1, "r.jsonl has no SERVER line; say with --server-name"),
            (("q.jsonl",), 1, "q.jsonl does not tell its dialect"),
            ((LIVE, "--speed", "-1"), 2, "--speed"),
            ((LIVE, "--port", port), 1, f"cannot listen on port {port}: "),
        ):
            done = await self.run_command("tap", "replay", *arguments)
            self.assertEqual((done.code, done.out), (code, ""), arguments)
            self.assertIn(message, done.err)


class LineWaiter:
    """Waits for a line on its way into a recording."""

    def __init__(self) -> None:
        self._wanted: tuple[Callable[[bytes], bool], Deferred[None]] | None = None

    def __call__(self, line: bytes) -> bytes:
        if self._wanted is not None and self._wanted[0](line):
            wanted, self._wanted = self._wanted[1], None
            wanted.callback(None)
        return line

    async def until(self, wanted: Callable[[bytes], bool]) -> None:
        """Wait for a line that comes after this call."""
        deferred: Deferred[None] = Deferred()
        self._wanted = wanted, deferred
        await deferred


class _ScriptedServer(Protocol):
    """Sends its script in answer to REPLICATE, and closes."""

    transport: Any

    def __init__(self, script: bytes) -> None:
        self._script = script
        self._received = b""

    def dataReceived(self, data: bytes) -> None:
        self._received += data
        if b"REPLICATE" in self._received:
            self.transport.write(self._script)
            self.transport.loseConnection()


def port_of(said: str) -> str:
    """HOST:PORT in what ``tap replay`` says."""
    return said.partition(" listens on ")[2].partition(",")[0]
