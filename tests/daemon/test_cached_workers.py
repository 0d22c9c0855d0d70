"""Caches of whole processes: a master and two workers, with a PostgreSQL server."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Sequence
from typing import Any

from twisted.internet.threads import deferToThread

from synrepl.adapters.postgres.session import open_session
from synrepl.testing.postgres import fresh_database
from tests.cli.cli_case import CliCase, Command, free_port


class CachedWorkers(CliCase):
    """A key cached in both workers, and changed on the master."""

    async def setUpProcesses(self) -> None:
        """Start them, and wait until they answer."""
        self.dsn = await fresh_database(self)
        await self.sql("CREATE TABLE users (user_id text PRIMARY KEY, name text NOT NULL)")
        await self.sql("INSERT INTO users VALUES ('@bob:example.com', 'Bob')")
        port = free_port()
        self.http_port = free_port()
        self.processes = [
            self.process("master", listeners=f"[{{port: {port}}}]"),
            self.process("worker1", master=f"{{port: {port}}}"),
            self.process("worker2", master=f"{{port: {port}}}", http=f"{{port: {self.http_port}}}"),
        ]
        for process in self.processes:
            await process.stderr_containing(
                "is ready" if process is self.processes[0] else "connected to"
            )

    def process(self, name: str, **settings: str) -> Command:
        """A real process of that name."""
        role = "master" if name == "master" else "worker"
        written = {
            "server_name": "example.com",
            "instance_name": name,
            "database": self.dsn,
            "catalogue": "[caches]",
            "handlers": "[{class: 'tests.daemon.cached_users:Users',"
            f" config: {{socket: {self.directory / name}.sock}}}}]",
            **settings,
        }
        path = self.directory / f"{name}.yaml"
        path.write_text("".join(f"{key}: {value}\n" for key, value in written.items()))
        return self.start(role, "-c", path)

    async def ask(self, name: str, *question: Any) -> Any:
        """The answer of a process's handler."""

        def ask() -> Any:
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(60)
                asking.connect(f"{self.directory / name}.sock")
                asking.sendall(json.dumps(question).encode() + b"\n")
                with asking.makefile() as answers:
                    return json.loads(answers.readline())

        said, *answer = await deferToThread(ask)
        return answer[0] if said == "ok" else (said, *answer)

    async def get(self, path: str) -> Any:
        """What worker2 answers over HTTP."""

        def get() -> Any:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}") as answer:
                return json.load(answer)

        return await deferToThread(get)

    async def sql(self, statement: str, params: Sequence[object] = ()) -> list[Any]:
        """Run a statement as somebody who knows nothing of this product."""
        from twisted.internet import reactor

        session = await open_session(reactor, self.dsn, "test")
        try:
            return await session.run(lambda txn: _run(txn, statement, params))
        finally:
            await session.close()

    async def names(self) -> list[Any]:
        """Bob's name, in the two workers."""
        return [await self.ask(name, "name", "@bob:example.com") for name in ("worker1", "worker2")]

    async def test_both_workers_read_the_new_value_after_an_invalidation(self) -> None:
        await self.setUpProcesses()
        for _ in range(2):
            self.assertEqual(await self.names(), [["Bob", 1], ["Bob", 1]])
        writer, token = await self.ask("master", "rename", "@bob:example.com", "Robert")
        self.assertEqual(writer, "master")
        self.assertEqual(await self.ask("worker1", "wait", writer, token, 60), token)
        waited = await self.get(f"/streams/caches/wait?writer={writer}&token={token}&timeout=60")
        self.assertEqual(waited["position"], token)
        self.assertEqual(await self.names(), [["Robert", 2], ["Robert", 2]])

        # What is rolled back changes nothing anywhere.
        refused = await self.ask("master", "rename", "@bob:example.com", "Nobody", True)
        self.assertEqual(refused, ("error", "ValueError", "so be it"))
        self.assertEqual(await self.names(), [["Robert", 2], ["Robert", 2]])

        # So does plain SQL, as a writer of its own.
        rows = json.dumps(
            [{"cache_func": "get_name", "keys": ["@bob:example.com"], "invalidation_ts": 0}]
        )
        ((token,),) = await self.sql(
            "WITH changed AS (UPDATE users SET name = 'Bobby')"
            " SELECT synrepl.append('caches', %s::jsonb)",
            (rows,),
        )
        for name in ("worker1", "worker2"):
            self.assertEqual(await self.ask(name, "wait", "sql", token, 60), token)
        self.assertEqual(await self.names(), [["Bobby", 3], ["Bobby", 3]])
        status = await self.get("/status")
        self.assertEqual(status["caches"]["rows"], {"get_name": 2})
        self.assertEqual(status["caches"]["by_name"]["get_name"]["invalidations"], 2)

    async def test_a_timeout_names_the_writer_that_holds_the_position(self) -> None:
        await self.setUpProcesses()
        said, name, message = await self.ask("worker1", "wait", "master", 7, 0)
        self.assertEqual((said, name), ("error", "WaitTimedOut"))
        self.assertIn("token 7 of 'caches' by 'master', which is at 0", message)


def _run(txn: Any, statement: str, params: Sequence[object]) -> list[Any]:
    txn.execute(statement, params)
    return list(txn.fetchall()) if txn.rowcount > 0 and "SELECT" in statement else []
