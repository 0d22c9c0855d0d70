"""Streams that came after Synapse 1.43 reach TCP followers of a listener that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cli.cli_case import CliCase, Command, InProcessMaster

ROOMS, EVENTS = "un_partial_stated_room", "un_partial_stated_event"


class LaterStreams(CliCase):
    async def listening(self, more: str) -> InProcessMaster:
        """A master with all streams, whose listener has more settings."""
        master = await self.master(catalogue=f"[{ROOMS}, {EVENTS}, groups, typing]")
        await master.stop()
        text = master.path.read_text()
        master.path.write_text(
            text.replace(f"{{port: {master.port}}}", f"{{port: {master.port}{more}}}")
        )
        await master.start()
        return master

    async def append(self, master: InProcessMaster, stream: str, *rows: list[Any]) -> None:
        declared = master.services.catalogue[stream]
        made = [[declared.kinds[""](*row)] for row in rows]
        await master.services.writer.append(declared, made)

    def worker(self, master: InProcessMaster, streams: str, tokens: int) -> tuple[Command, Path]:
        """A worker that catches up over HTTP, and where it notes tokens."""
        rows, path = self.directory / "rows", self.directory / "worker.yaml"
        path.write_text(
            "server_name: example.com\ninstance_name: w\ncatch_up: http\n"
            f"follow: {streams}\n"
            f"master: {{port: {master.port}, http_url: 'http://127.0.0.1:{master.http_port}'}}\n"
            "handlers: [{class: 'tests.daemon.recording_handlers:TokenRecorder',"
            f" config: {{path: {rows}, tokens: {tokens}}}}}]\n"
        )
        return self.start("worker", "-c", path), rows

    async def test_a_worker_has_what_it_missed_and_what_comes(self) -> None:
        master = await self.listening(", rows: current")
        for stream, rows in (
            (ROOMS, [["!a:x"], ["!b:x"]]),
            (EVENTS, [["$a", False], ["$b", True]]),
        ):
            await self.append(master, stream, *rows)
            worker, noted = self.worker(master, f"[{stream}]", 3)
            while not noted.exists() or noted.read_text() != "1\n2\n":
                await worker.stderr_containing("connected to")
                await self.yield_to_processes()
            await self.append(master, stream, [*rows[0]])
            await worker.stderr_containing("all are there")
            await worker.kill()
            noted.unlink()

    async def test_a_worker_that_catches_up_over_http_has_streams_that_are_gone_today(self) -> None:
        master = await self.listening("")
        await self.append(master, "groups", ["+a:x", "@u:x", "membership", {}])
        worker, _ = self.worker(master, "[groups]", 1)
        await worker.stderr_containing("all are there")

    async def test_a_worker_logs_streams_that_its_listener_leaves_out(self) -> None:
        master = await self.listening("")
        worker, _ = self.worker(master, f"[{ROOMS}, typing]", 1)
        said = await worker.stderr_containing(f"the master does not announce stream {ROOMS}")
        self.assertIn("'rows: current'", said)
        self.assertNotIn("announce stream typing", said)
