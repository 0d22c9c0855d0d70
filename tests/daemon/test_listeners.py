"""The listeners of a real master: which requests they answer, how many at a time, and what they log."""

# mypy: disable-error-code="no-untyped-call"
# (trial's assertions have no types)

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import Deferred, gatherResults

from tests.adapters.raw_http_client import RawHttpClient, Reply, connect, request
from tests.cli.cli_case import CliCase
from tests.daemon.test_metrics import samples

APPEND = request("POST", "/streams/orders/facts", b'[["o1", 5]]')


class Listeners(CliCase):
    async def client(self, port: int) -> RawHttpClient:
        client = await connect(port)
        self.addCleanup(lambda: Deferred.fromCoroutine(client.close()))
        return client

    async def ask(self, port: int, data: bytes) -> Reply:
        client = await self.client(port)
        client.send(data)
        return await client.reply()

    async def test_host_names_come_from_the_configuration(self) -> None:
        master = await self.master(http_extra="allowed_hosts: [Shop.Example, 192.0.2.1]")
        for host, status in (
            ("127.0.0.1", 200),
            (f"localhost:{master.http_port}", 200),
            ("shop.example:80", 200),
            ("192.0.2.1", 200),
            ("evil.example", 421),
            ("192.0.2.2", 421),
        ):
            for path in ("/health", "/status", "/", "/metrics"):
                reply = await self.ask(
                    master.http_port, request("GET", path, headers={"Host": host})
                )
                self.assertEqual(reply.status, status, (host, path))
        reply = await self.ask(
            master.http_port,
            request("POST", "/streams/orders/facts", b'[["o1", 5]]', {"Host": "evil.example"}),
        )
        self.assertEqual((reply.status, reply.json["error"]), (421, "WrongHost"))
        self.assertEqual(await master.stored(), [])

    async def test_two_hundred_appends_at_a_time_are_all_taken(self) -> None:
        master = await self.master()
        clients = [await self.client(master.http_port) for _ in range(200)]
        for client in clients:
            client.send(APPEND)
        replies = await gatherResults([Deferred.fromCoroutine(c.reply()) for c in clients])
        self.assertEqual([reply.status for reply in replies], [200] * 200)
        self.assertEqual(len(await master.stored()), 200)

    async def test_incomplete_appends_do_not_keep_others_out(self) -> None:
        master = await self.master()
        for _ in range(150):
            client = await self.client(master.http_port)
            client.send(APPEND[:-1])
        self.assertEqual((await self.ask(master.http_port, APPEND)).status, 200)
        self.assertEqual((await self.ask(master.http_port, request("GET", "/health"))).status, 200)

    async def test_status_and_metrics_count_connections_and_requests(self) -> None:
        master = await self.master(http_extra="max_connections: 7")
        follower = await self.client(master.port)
        follower.send(b"REPLICATE\nUSER_SYNC i @u:x start 5\n")
        status: dict[str, Any] = {}
        while status.get("syncing_users", {}).get("count") != 1:
            status = (await self.ask(master.http_port, request("GET", "/status"))).json
        http = status["http"]
        assert isinstance(http, dict)
        self.assertEqual((http["max_connections"], http["refused"]), (7, 0))
        wanted = {"port": master.port, "connections": 1, "max_connections": 1000}
        (listener,) = json.loads(json.dumps(status["listeners"]))
        self.assertEqual({key: listener[key] for key in wanted}, wanted)
        self.assertEqual(status["ignored"], {})
        body = (await self.ask(master.http_port, request("GET", "/metrics"))).body
        name = frozenset({("listener", f"replication:{master.port}")})
        self.assertEqual(samples(body)["synrepl_listener_connections", name], 1)
