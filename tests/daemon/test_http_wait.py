"""``GET /streams/<stream>/wait`` of a master and of a worker."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlencode

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.daemon.assemble import WorkerServices
from synrepl.daemon.config.config import load_worker
from synrepl.daemon.worker import WorkerProcess
from tests.adapters.raw_http_client import connect, request, turn
from tests.cli.cli_case import CliCase, InProcessMaster, free_port


class WaitingForPositions(CliCase):
    def setUp(self) -> None:
        super().setUp()
        self.workers: list[WorkerProcess] = []

    async def tearDown(self) -> None:  # type: ignore[override]
        for worker in self.workers:
            await worker.stop()

    def ask(self, port: int, stream: str = "orders", **query: object) -> Deferred[tuple[int, Any]]:
        """Status and JSON of the answer."""
        url = f"http://127.0.0.1:{port}/streams/{stream}/wait?{urlencode(query)}"

        def ask() -> tuple[int, Any]:
            try:
                with urllib.request.urlopen(url, timeout=30) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        answered: Deferred[tuple[int, Any]] = deferToThread(ask)
        return answered

    async def worker(self, master: InProcessMaster, **settings: str) -> tuple[WorkerServices, int]:
        """A worker in this process that has heard of the master's positions, and its HTTP port."""
        written = {
            "server_name": "example.com",
            "instance_name": "w",
            "catalogue": "[events, typing]",
            "streams": "[{name: orders, columns: {order_id: text, amount: bigint, note: 'json?'}}]",
            "catch_up": "http",
            "master": f"{{port: {master.port}, http_url: 'http://127.0.0.1:{master.http_port}'}}",
            "http": f"{{port: {free_port()}}}",
            **settings,
        }
        path = self.directory / "worker.yaml"
        path.write_text("".join(f"{key}: {value}\n" for key, value in written.items()))
        worker = WorkerProcess(reactor, load_worker([path]))
        self.workers.append(worker)
        running = await worker.start()
        while not running.services.follower.positions:
            await TwistedScheduler(reactor).sleep(0.01)
        assert running.http is not None
        return running.services, running.http.port

    async def until_waiting(self, process: Any, count: int = 1) -> None:
        while len(process.waiters) < count:
            await turn()

    async def test_a_reader_that_waits_sees_its_writes(self) -> None:
        master = await self.master()
        worker, port = await self.worker(master)
        wanted = {"stream": "orders", "writer": "master", "token": 1}
        early = self.ask(port, writer="master", token=1)
        at_master = self.ask(master.http_port, token=1)
        await self.until_waiting(worker)
        await self.until_waiting(master.services)
        self.assertEqual(await master.append([["a", 1]]), [1])
        self.assertEqual(await early, (200, {**wanted, "position": 1}))
        self.assertEqual(await at_master, (200, {**wanted, "writer": None, "position": 1}))
        self.assertEqual(
            await self.ask(port, writer="master", token=1, timeout="0"),
            (200, {**wanted, "position": 1}),
        )

    async def test_waits_for_the_linear_position(self) -> None:
        master = await self.master()
        _, port = await self.worker(master, dialect="legacy")
        await master.append([["a", 1]])
        for query in ({"writer": "master"}, {"writer": "whoever"}, {}):
            status, answer = await self.ask(port, token=1, **query)
            self.assertEqual((status, answer["position"]), (200, 1), answer)

    async def test_a_timeout_names_the_position_reached(self) -> None:
        master = await self.master()
        _, port = await self.worker(master)
        status, answer = await self.ask(port, writer="master", token=7, timeout="10ms")
        self.assertEqual((status, answer["error"]), (504, "WaitTimedOut"))
        self.assertEqual(
            answer["message"],
            "waited 0.01 s for token 7 of 'orders' by 'master', which is at 0: "
            "the master has announced it only up to 0",
        )
        stream = master.services.catalogue["orders"]
        async with await master.services.writer.reserve(stream, 1):
            await master.append([["a", 1]])
            while True:  # the first look at the database may be still to come
                status, answer = await self.ask(master.http_port, token=2, timeout="0.01")
                self.assertEqual(status, 504)
                if "held by writer 'master' (" in answer["message"]:
                    break
        self.assertIn("by '(all)', which is at 0", answer["message"])
        self.assertEqual((await self.ask(master.http_port, token=2))[0], 200)

    async def test_refuses_unusable_queries(self) -> None:
        master = await self.master()
        _, port = await self.worker(master)
        for query, status, error in (
            ({"token": 1, "stream": "nosuch"}, 404, "UnknownStream"),
            ({}, 400, "MissingParameter"),
            ({"token": "x"}, 400, "BadToken"),
            ({"token": -1}, 400, "BadToken"),
            ({"token": 1, "writer": "a b"}, 400, "BadName"),
            ({"token": 1, "writer": "master", "timeout": "soon"}, 400, "BadWait"),
            ({"token": 1, "writer": "master", "timeout": "nan"}, 400, "BadWait"),
            ({"token": 1, "writer": "master", "timeout": "1e9"}, 400, "BadWait"),
            ({"token": 1, "writer": "master", "timeout": "301"}, 400, "BadWait"),
            ({"token": 1, "writer": "master", "timeout": "-1"}, 400, "BadWait"),
            ({"token": 1, "writer": "master", "timeout": ""}, 400, "BadWait"),
        ):
            with self.subTest(query):
                found, answer = await self.ask(port, **query)
                self.assertEqual((found, answer["error"]), (status, error))

    async def test_refuses_to_wait_for_a_stream_that_is_not_followed(self) -> None:
        _, port = await self.worker(await self.master(), follow="[events]")
        found, answer = await self.ask(port, token=1, writer="master")
        self.assertEqual((found, answer["error"]), (400, "NotFollowed"))

    async def test_a_client_that_disconnects_ends_its_wait(self) -> None:
        master = await self.master()
        client = await connect(master.http_port)
        client.send(request("GET", "/streams/orders/wait?token=1"))
        await self.until_waiting(master.services)
        await client.close()
        while len(master.services.waiters):
            await turn()

    async def test_a_process_that_stops_ends_the_waits(self) -> None:
        master = await self.master()
        worker, port = await self.worker(master)
        of_worker = self.ask(port, writer="master", token=1)
        of_master = self.ask(master.http_port, token=1)
        await self.until_waiting(worker)
        await self.until_waiting(master.services)
        await self.workers.pop().stop()
        await master.stop()
        for answered in (of_worker, of_master):
            status, answer = await answered
            self.assertEqual((status, answer["error"]), (503, "NoLongerWaiting"))
