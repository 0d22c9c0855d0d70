"""A failover that loses commits, for workers over Redis, without a database, or on the old server."""

from __future__ import annotations

from typing import Any

from psycopg2 import extensions
from twisted.internet.defer import Deferred

from synrepl.testing.redis import RedisTestServer
from system_tests.daemon.test_failover import FailoverShop
from tests.adapters.fault_proxy import FaultProxy


class OverRedis(FailoverShop):
    """A master and workers that hear each other over Redis pub/sub only."""

    async def setUp(self) -> None:  # type: ignore[override]
        self.redis = RedisTestServer()
        self.addCleanup(self.redis.close)
        await super().setUp()

    async def begin(self, name: str, **settings: str) -> Any:
        process = self.process(name, redis=f"{{path: {self.redis.path}}}", **settings)
        await self.until_ready(name)
        return process

    async def test_a_worker_is_notified_of_losses_and_misses_nothing_later(self) -> None:
        await self.begin("w1", handlers=f"[{self.careful()}, {self.totals()}]")
        kept, lost = await self.lose()
        self.servers.fail_over()
        await self.until_all_is_well(await self.ordered("new"))
        ((writer, loss),) = self.losses()
        self.assertEqual((writer, loss.upto), ("master", lost))
        self.assertLessEqual(loss.after, kept + 1)
        last = await self.order("later1", "later2")
        await self.wait("w1", "orders", "master", last)
        self.assertEqual(self.orders_of()[-3:], ["new", "later1", "later2"])
        self.assertEqual(self.in_totals()[-3:], ["new", "later1", "later2"])

    async def test_facts_of_another_writer_that_are_lost(self) -> None:
        await self.begin("w1", handlers=f"[{self.careful()}, {self.totals()}]")
        await self.begin("w2")
        _, lost = await self.lose(by="w2")
        self.servers.fail_over()
        await self.until_all_is_well(await self.ordered("new", at="w2"), "w2")
        self.assertIn(("w2", lost), [(w, loss.upto) for w, loss in self.losses()])
        last = await self.ordered("later", at="w2")
        await self.wait("w1", "orders", "w2", last)
        last = await self.ordered("by-master")
        await self.wait("w1", "orders", "master", last)
        self.assertEqual(self.orders_of()[-2:], ["later", "by-master"])


class WithoutADatabase(FailoverShop):
    """A worker that asks the master over HTTP for what it lacks."""

    def recorded(self, worker: str) -> int:
        """It has nothing on record; that of the master goes with its facts."""
        ((position,),) = self.sql(
            "SELECT position FROM synrepl._writers WHERE stream = 'orders' AND writer = 'master'"
        )
        return int(position)

    async def over_http(self, **settings: str) -> Any:
        """Start a worker with a mailer."""
        url = f"http://127.0.0.1:{self.http['master']}"
        without = {"database": "~", "catch_up": "http", "stream_writers": "{}"}
        master = f"{{port: {self.port}, http_url: '{url}'}}"
        return await self.begin(
            "w1", handlers=f"[{self.careful()}]", master=master, **without, **settings
        )

    async def test_it_is_notified_of_losses_and_misses_nothing_later(self) -> None:
        await self.over_http()
        kept, lost = await self.lose()
        self.servers.fail_over()
        new = await self.ordered("new")
        await self.wait("w1", "orders", "master", new)
        ((writer, loss),) = self.losses()
        self.assertEqual((writer, loss.upto), ("master", lost))
        self.assertLessEqual(loss.after, kept + 1)
        await self.wait("w1", "orders", "master", await self.order("later"))
        self.assertEqual(self.orders_of()[-2:], ["new", "later"])

    async def test_its_page_is_refused_with_the_lost_range(self) -> None:
        await self.over_http()
        kept, lost = await self.lose()
        self.servers.fail_over()
        new = await self.ordered("new")
        path = "/_synapse/replication/get_repl_stream_updates/orders/abcdefghij"
        query = f"?from_token={lost}&upto_token={new}&limit=10&rows=current&writer=master"
        status, error, message = await self.ask("master", path + query)
        self.assertEqual((status, error), (410, "FactsLost"))
        self.assertIn(f"{kept}", message)


class OldServer(FailoverShop):
    """A worker whose connections stay on the old primary, which lives on."""

    async def test_it_takes_nothing_of_it_for_true_and_goes_on_with_the_new_one(self) -> None:
        await self.stay_on_the_old_one()

    async def test_the_same_in_the_legacy_dialect(self) -> None:
        await self.stay_on_the_old_one(dialect="legacy")

    async def stay_on_the_old_one(self, **settings: str) -> None:
        primary = self.servers.primary.dsn
        proxy = FaultProxy(int(extensions.parse_dsn(primary)["port"]))
        self.addCleanup(lambda: Deferred.fromCoroutine(proxy.stop()))
        by_proxy = extensions.make_dsn(**{**extensions.parse_dsn(primary), "port": proxy.port})
        await self.worker(self.careful(), self.totals(), database=f'"{by_proxy}"', **settings)
        kept, lost = await self.lose()
        await self.stop(self.processes["master"], "KILL")
        self.servers.promote()
        await self.begin("master", database=f'"{self.servers.standby.dsn}"')
        self.dsn = self.servers.standby.dsn
        new = [await self.ordered("new")]

        async def refuses() -> bool:
            last = (await self.ask("w1", "/status"))["tokens"]["last_refused"]
            if last is not None and last["token"] >= new[0]:
                return True
            # Positions of other streams may have been refused after the order: refuse another one.
            new.append(await self.ordered(f"new{len(new)}"))
            return False

        await self.until(refuses)
        self.assertEqual(self.losses(), [])
        proxy.target = int(extensions.parse_dsn(self.dsn)["port"])
        for side in list(proxy.sides):
            side.transport.abortConnection()
        await self.until_all_is_well(new[-1])
        # To a legacy worker it is a loss of the linear view.
        loss = dict(self.losses())["" if "dialect" in settings else "master"]
        self.assertEqual(loss.upto, lost)
        self.assertLessEqual(loss.after, kept + 1)
