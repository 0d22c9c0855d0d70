"""Reads through connections that stay on the old server after a failover."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import urlsplit

from psycopg2 import extensions
from twisted.internet.defer import Deferred, ensureDeferred, gatherResults

from synrepl.core.tokens import Range
from synrepl.storage.database import Transaction
from synrepl.storage.incarnations import MARGIN
from synrepl.storage.store import Draft, OlderServer
from tests.adapters.fault_proxy import FaultProxy
from tests.storage.failover import FailoverCase
from tests.storage.postgres import Process
from tests.storage.samples import NOTES, note


class OldServer(FailoverCase):
    """The old primary keeps running, and a reader has connections to it."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.dsn = self.servers.primary.dsn
        self.proxy = FaultProxy(self.port_of(self.dsn))
        self.addCleanup(lambda: Deferred.fromCoroutine(self.proxy.stop()))
        parts = {**extensions.parse_dsn(self.dsn), "port": self.proxy.port}
        self.reader = self.on(extensions.make_dsn(**parts), "reader")
        await self.append(3)
        await self.disconnect()
        await self.append(5)

    def port_of(self, dsn: str) -> int:
        return urlsplit(dsn).port or 0

    def on(self, dsn: str, name: str) -> Process:
        """A process at one of the servers."""
        process = Process(dsn, name)
        self.addCleanup(lambda: Deferred.fromCoroutine(process.close()))
        return process

    async def append(self, count: int) -> None:
        """Append facts by a writer on the old server."""
        process = self.process("one")
        lease = await process.store.open_writer("one", [NOTES])
        await lease.append(NOTES, [Draft([[note("a")]] * count)], 0)
        await lease.close()
        await process.close()

    async def at_once(self, count: int) -> None:
        """Use this number of the reader's connections at the same time."""
        barrier = threading.Barrier(count, timeout=30)

        def work(txn: Transaction) -> None:
            barrier.wait()

        runs = [self.reader.database.run("wait", work, read_only=True) for _ in range(count)]
        await gatherResults([ensureDeferred(run) for run in runs])

    async def fail_over_beside(self) -> None:
        """Promote and confirm the standby; new connections lead to it."""
        self.servers.promote()
        self.proxy.target = self.port_of(self.servers.standby.dsn)
        await self.on(self.servers.standby.dsn, "master").store.confirm({})

    async def read_at_once(self, count: int) -> list[Any]:
        """The results of concurrent reads: the surviving position and the largest token given out."""
        reads = [self.reader.store.page(NOTES, Range(0, 100), None, 100) for _ in range(count)]
        looks = [self.reader.store.given_out(NOTES) for _ in range(count)]
        pages = await gatherResults([ensureDeferred(read) for read in reads])
        given_out = await gatherResults([ensureDeferred(look) for look in looks])
        self.assertTrue(all(token >= MARGIN for token in given_out), given_out)
        return [[fact.token for fact in page.facts] for page in pages]

    async def test_a_pool_with_connections_to_both_reads_from_the_new_one_only(self) -> None:
        await self.at_once(2)
        await self.fail_over_beside()
        await self.at_once(3)  # so the third connection leads to the new server
        while (await self.reader.store.observe([NOTES]))["notes"].incarnation < 2:
            await self.at_once(3)
        self.assertEqual(await self.read_at_once(3), [[1, 2, 3]] * 3)

    async def test_a_process_that_has_read_the_new_one_refuses_the_old_one(self) -> None:
        await self.fail_over_beside()
        await self.reader.store.page(NOTES, Range(0, 100), None, 100)
        self.proxy.target = self.port_of(self.dsn)
        for side in list(self.proxy.sides):
            side.transport.abortConnection()
        with self.assertRaises(OlderServer):
            await self.reader.store.page(NOTES, Range(0, 100), None, 100)
        self.proxy.target = self.port_of(self.servers.standby.dsn)
        self.assertEqual(await self.read_at_once(2), [[1, 2, 3]] * 2)
