"""Peers of Synapse 1.0 to 1.21: followed without a configured dialect, and served."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.protocols.basic import LineOnlyReceiver

from synrepl.streams.definition import Generation
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.tools.tap.recording import read_recording
from tests.adapters.redis_fixture import reactor
from tests.cli.cli_case import CliCase, InProcessMaster
from tests.wire.recordings import CAPTURES

TRANSITIONAL = CAPTURES / "1.20.1" / "live.jsonl.gz"
OLDEST = CAPTURES / "1.0.0" / "live.jsonl.gz"


class Netcat(LineOnlyReceiver):
    """Asks, and keeps what it hears until there are so many lines about streams."""

    transport: Any
    delimiter = b"\n"

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._enough: tuple[int, Deferred[None]] | None = None

    def lineReceived(self, line: bytes) -> None:
        """Keep it."""
        if line.startswith((b"RDATA", b"POSITION", b"ERROR")):
            self.lines.append(line.decode())
        if self._enough is not None and len(self.lines) >= self._enough[0]:
            (_, enough), self._enough = self._enough, None
            enough.callback(None)

    async def received(self, count: int) -> list[str]:
        """So many lines, which are forgotten then."""
        if len(self.lines) < count:
            enough: Deferred[None] = Deferred()
            self._enough = count, enough
            await enough
        taken, self.lines = self.lines[:count], self.lines[count:]
        return taken


class OlderClients(CliCase):
    """Our master for older workers."""

    async def connect(self, master: InProcessMaster, asked: str) -> Netcat:
        netcat = Netcat()
        await connectProtocol(TCP4ClientEndpoint(reactor, "127.0.0.1", master.port), netcat)
        self.addCleanup(netcat.transport.abortConnection)
        netcat.sendLine(asked.encode())
        return netcat

    async def append(self, master: InProcessMaster, stream: str, row: list[Any]) -> None:
        declared = master.services.catalogue[stream]
        if declared.tagged:
            kind, cells = row
            made = declared.kinds[kind](*cells)
        else:
            made = declared.kinds[""](*row)
        await master.services.writer.append(declared, [[made]])

    async def test_serves_transitional_clients(self) -> None:
        master = await self.master(catalogue="all")
        await master.stop()
        text = master.path.read_text()
        listener = f"{{port: {master.port}, dialect: transitional}}"
        master.path.write_text(text.replace(f"{{port: {master.port}}}", listener))
        await master.start()
        known = [s.name for s in SYNAPSE_STREAMS if Generation.TRANSITIONAL in s.generations]
        self.assertIn("public_rooms", known)
        netcat = await self.connect(master, "REPLICATE")
        positions = await netcat.received(len(known) + 1)
        self.assertEqual(positions, [f"POSITION {name} master 0" for name in (*known, "orders")])
        event = ["$e", "!r:x", "m.room.name", "", None, None, "join", True, True]
        for stream, row, sent in (
            ("events", ["ev", event], ["ev", event[:6]]),
            ("public_rooms", ["!r:x", True, None, None], ["!r:x", True, None, None]),
            ("device_lists", ["@u:x", "y"], ["@u:x"]),
            (
                "receipts",
                ["!r:x", "m.read", "@u:x", "$e", {}, "$t"],
                ["!r:x", "m.read", "@u:x", "$e", {}],
            ),
            ("account_data", ["@u:x", None, "t", "{}"], ["@u:x", None, "t"]),
        ):
            await self.append(master, stream, row)
            introduced, line = await netcat.received(2)
            self.assertEqual(introduced, f"POSITION {stream} master 0")
            head, _, cells = line.partition(" [")
            self.assertEqual(head, f"RDATA {stream} master 1")
            self.assertEqual(json.loads(f"[{cells}"), sent)
        command = await self.run_command(
            *("tail", "-c", master.path, "events", "--json", "--from", "0", "--count", "1")
        )
        self.assertEqual(json.loads(command.out)["row"], ["ev", event[:6]])

    async def test_serves_the_oldest_clients(self) -> None:
        for setting, row in (
            ("", ["@u:x", None, "m.direct"]),
            (", legacy_rows: oldest", ["@u:x", None, "m.direct", '{"a":1}']),
        ):
            master = await self.master(catalogue="[account_data]")
            await master.stop()
            text = master.path.read_text()
            listener = f"{{port: {master.port}{setting}}}"
            master.path.write_text(text.replace(f"{{port: {master.port}}}", listener))
            await master.start()
            await self.append(master, "account_data", ["@u:x", None, "m.direct", '{"a":1}'])
            netcat = await self.connect(master, "REPLICATE account_data 0")
            line, position = await netcat.received(2)
            head, _, cells = line.partition(" [")
            self.assertEqual((head, position), ("RDATA account_data 1", "POSITION account_data 1"))
            self.assertEqual(json.loads(f"[{cells}"), row)
            await master.stop()


class OlderMasters(CliCase):
    """Our followers on real servers, as recorded, that speak an older dialect."""

    async def replayed(self, path: object) -> str:
        command = self.start("tap", "replay", path, "--speed", "0")
        said = await command.stderr_containing("dialect")
        return said.partition(" listens on ")[2].partition(",")[0]

    def sent(self, stream: str) -> list[bytes]:
        prefix = f"RDATA {stream} ".encode()
        return [each.text for each in read_recording(TRANSITIONAL) if each.text.startswith(prefix)]

    async def test_tail_follows_a_transitional_master(self) -> None:
        sent = self.sent("events")
        done = await self.run_command(
            *("tail", await self.replayed(TRANSITIONAL), "events", "--json"),
            *("--count", len(sent)),
        )
        rows = [json.loads(line)["row"] for line in done.out.splitlines()]
        sent_rows = [json.loads(b"[" + text.split(b" [", 1)[1]) for text in sent]
        self.assertEqual((done.err, rows), ("", sent_rows))

    async def test_tap_record_and_judge(self) -> None:
        for path, dialect, more in (
            (TRANSITIONAL, "transitional", ()),
            (OLDEST, "legacy", ("--dialect", "legacy")),
        ):
            where = await self.replayed(path)
            name = f"{dialect}.jsonl"
            command = self.start("tap", "record", "--tcp", where, name, *more)
            rows = [each.text for each in read_recording(path) if each.text[:5] == b"RDATA"]
            recorded = self.directory / name
            while not recorded.exists() or recorded.read_text().count('"RDATA') < len(rows):
                await command.stderr_containing("recording")
                await self.yield_to_processes()
            command.signal("INT")
            done = await command.done()
            self.assertEqual(done.code, 130)
            judged = await self.run_command("tap", "judge", name)
            self.assertEqual(judged.code, 0)
            self.assertIn(f"{name}: {dialect}, ", judged.out)

    async def test_a_worker_follows_a_transitional_master(self) -> None:
        rows = self.directory / "rows"
        tokens = {int(text.split(b" ", 4)[3]) for text in self.sent("receipts")}
        port = (await self.replayed(TRANSITIONAL)).rpartition(":")[2]
        path = self.directory / "worker.yaml"
        path.write_text(
            "server_name: localhost:18401\ninstance_name: w1\nfollow: [receipts]\n"
            "starting: now\ncatch_up: http\n"
            f"master: {{port: {port}, foreign: true, http_url: 'http://127.0.0.1:1'}}\n"
            "handlers: [{class: 'tests.daemon.recording_handlers:TokenRecorder',"
            f" config: {{path: {rows}, tokens: {len(tokens)}}}}}]\n"
        )
        worker = self.start("worker", "-c", path)
        await worker.stderr_containing("all are there")
        self.assertEqual({int(line) for line in rows.read_text().split()}, tokens)
