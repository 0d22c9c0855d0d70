"""Test case base: a master and workers as real processes, which write the same streams."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import psycopg2
from twisted.internet import reactor
from twisted.internet.threads import deferToThread

from synrepl.adapters.scheduler import TwistedScheduler
from tests.cli.cli_case import ORDERS, CliCase, Command, free_port
from tests.storage.postgres import MIGRATED

JOBS = "{job: bigint}"


class WritersCase(CliCase):
    """Starts processes by name, and sends them HTTP requests."""

    #: The setting ``stream_writers`` of all processes.
    stream_writers = "{orders: [master, w1, w2], jobs: [w1]}"

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        self.dsn = await self.make_database()
        self.port = free_port()
        self.http: dict[str, int] = {}
        self.processes: dict[str, Command] = {}

    async def make_database(self) -> str:
        """The DSN of the database that all of them use."""
        return await MIGRATED.copy(self)

    async def begin_all(self) -> None:
        """Start a master and two workers, and wait until they answer."""
        await self.begin("master")
        for name in ("w1", "w2"):
            await self.begin(name)

    async def begin(self, name: str, **settings: str) -> Command:
        """Start a process, and wait until it is ready."""
        process = self.process(name, **settings)
        await process.stderr_containing("is ready" if name == "master" else "connected to")
        await self.until_ready(name)
        return process

    def process(self, name: str, **settings: str) -> Command:
        """Start a process; a worker unless it is the master."""
        role = "master" if name == "master" else "worker"
        self.http[name] = free_port()
        written = {
            "server_name": "example.com",
            "instance_name": name,
            "database": self.dsn,
            "catalogue": "[caches]",
            "streams": f"[{{name: orders, columns: {ORDERS}}}, {{name: jobs, columns: {JOBS}}}]",
            "stream_writers": self.stream_writers,
            "http": f"{{port: {self.http[name]}}}",
            "listeners" if name == "master" else "master": (
                f"[{{port: {self.port}}}]" if name == "master" else f"{{port: {self.port}}}"
            ),
            **settings,
        }
        path = self.directory / f"{name}.yaml"
        path.write_text("".join(f"{key}: {value}\n" for key, value in written.items()))
        process = self.processes[name] = self.start(role, "-c", path)
        return process

    async def ask(self, name: str, path: str, body: Any = None, **headers: str) -> Any:
        """The JSON answer of a process; of a refusal, (status, error, message)."""
        url = f"http://127.0.0.1:{self.http[name]}{path}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers)

        def ask() -> Any:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.load(answer)
            except HTTPError as error:
                with error:
                    body = json.load(error)
                    return (error.code, body.get("error"), body.get("message", body))

        return await deferToThread(ask)

    async def append(self, name: str, stream: str, *rows: list[Any]) -> Any:
        """Append facts at a process; the tokens, or the refusal."""
        answer = await self.ask(name, f"/streams/{stream}/facts", list(rows))
        return answer["ids"] if isinstance(answer, dict) else answer

    async def wait(self, name: str, stream: str, writer: str, token: int) -> None:
        """Wait until a process has a token of a writer, or "" for the linear view."""
        whose = f"writer={writer}&" if writer else ""
        answer = await self.ask(name, f"/streams/{stream}/wait?{whose}token={token}&timeout=60")
        assert answer["position"] >= token, answer

    async def until(self, what: Callable[[], Any]) -> Any:
        """Repeat until the result is true; the test's timeout ends a vain wait."""
        while True:
            try:
                found = await what()
            except URLError:
                found = None
            if found:
                return found
            await TwistedScheduler(reactor).sleep(0.05)

    async def until_ready(self, name: str) -> None:
        """Wait until a process says that it is ready."""

        async def is_ready() -> bool:
            answer = await self.ask(name, "/ready")
            return isinstance(answer, dict) and bool(answer["ready"])

        await self.until(is_ready)

    async def orders(self) -> Any:
        """The status of the stream ``orders`` at the master."""
        return (await self.ask("master", "/status"))["streams"]["orders"]

    def connect(self) -> psycopg2.extensions.connection:
        """A plain connection."""
        connection = psycopg2.connect(self.dsn)
        self.addCleanup(connection.close)
        return connection

    async def writers(self, *arguments: str) -> Any:
        """Run ``synrepl writers`` on the master's configuration."""
        command, *more = arguments
        return await self.run_command(
            "writers", command, "-c", self.directory / "master.yaml", *more
        )


async def ask_handler(path: Path, *question: Any) -> Any:
    """The answer of a handler of :mod:`tests.daemon.cached_users`."""

    def ask() -> Any:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(60)
            asking.connect(str(path))
            asking.sendall(json.dumps(question).encode() + b"\n")
            with asking.makefile() as answers:
                return json.loads(answers.readline())

    said, *answer = await deferToThread(ask)
    return answer[0] if said == "ok" else (said, *answer)
