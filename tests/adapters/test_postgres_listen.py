"""Notifications of a real PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable

from psycopg2 import extensions
from twisted.internet import reactor
from twisted.internet.defer import Deferred, DeferredQueue
from twisted.trial.unittest import TestCase

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.listen import PostgresListener
from synrepl.testing.postgres import fresh_database
from tests.adapters.fault_proxy import FaultProxy


class PostgresListenerNotifications(TestCase):
    """What happened is put into a queue, in order."""

    timeout = 60

    async def setUp(self) -> None:
        self.dsn = await fresh_database(self)
        self.database = PostgresDatabase(reactor, self.dsn, "notifier")
        self.addCleanup(lambda: Deferred.fromCoroutine(self.database.close()))
        self.received: DeferredQueue[object] = DeferredQueue()

    def listener(
        self, dsn: str, *channels: str, on_notify: Callable[[str, str], object] | None = None
    ) -> PostgresListener:
        listener = PostgresListener(
            reactor,
            dsn,
            "listener",
            channels,
            on_notify or (lambda channel, payload: self.received.put((channel, payload))),
            lambda: self.received.put("connected"),
        )
        self.addCleanup(lambda: Deferred.fromCoroutine(listener.stop()))
        return listener

    async def sql(self, sql: str, *params: object) -> None:
        await self.database.run("sql", lambda txn: txn.execute(sql, params))

    async def terminate(self) -> None:
        await self.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'synrepl listener'"
        )

    async def test_delivers_notifications_in_order_by_channel(self) -> None:
        self.listener(self.dsn, "one", 'Odd "name"').start()
        self.assertEqual(await self.received.get(), "connected")
        await self.sql(
            "SELECT pg_notify('one', n::text) FROM generate_series(1, 3) AS n;"
            """SELECT pg_notify('Odd "name"', 'x'); SELECT pg_notify('two', 'unheard');"""
            "SELECT pg_notify('one', 'last')"
        )
        received = [await self.received.get() for _ in range(5)]
        self.assertEqual(
            received,
            [("one", "1"), ("one", "2"), ("one", "3"), ('Odd "name"', "x"), ("one", "last")],
        )

    async def test_reconnects_and_calls_on_reconnect(self) -> None:
        self.listener(self.dsn, "one").start()
        for n in range(2):
            self.assertEqual(await self.received.get(), "connected")
            await self.sql("SELECT pg_notify('one', %s)", str(n))
            self.assertEqual(await self.received.get(), ("one", str(n)))
            await self.terminate()
        self.assertEqual(await self.received.get(), "connected")

    async def test_waits_for_a_database_that_is_away(self) -> None:
        proxy = FaultProxy(int(extensions.parse_dsn(self.dsn)["port"]))
        self.addCleanup(lambda: Deferred.fromCoroutine(proxy.stop()))
        proxy.refusing = True
        refusals: list[int] = []

        def refused() -> None:
            refusals.append(1)
            proxy.refusing = len(refusals) < 2

        proxy.on_refused = refused
        parts = {**extensions.parse_dsn(self.dsn), "port": str(proxy.port)}
        self.listener(extensions.make_dsn(**parts), "one").start()
        self.assertEqual(await self.received.get(), "connected")
        self.assertEqual(len(refusals), 2)

    async def test_goes_on_after_an_error_in_a_callback(self) -> None:
        calls: list[str] = []

        def fail_first(channel: str, payload: str) -> None:
            calls.append(payload)
            if len(calls) == 1:
                raise ValueError(payload)
            self.received.put(payload)

        listener = self.listener(self.dsn, "one", on_notify=fail_first)
        listener.start()
        await self.received.get()
        await self.sql("SELECT pg_notify('one', n) FROM unnest(ARRAY['a', 'b']) AS n")
        self.assertEqual(await self.received.get(), "b")
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    async def test_can_be_stopped_while_connecting(self) -> None:
        before = set(threading.enumerate())
        listener = self.listener(self.dsn, "one")
        listener.start()
        await listener.stop()
        self.assertEqual(self.received.pending, [])
        self.assertEqual(set(threading.enumerate()) - before, set())

    async def test_can_be_stopped_between_attempts(self) -> None:
        proxy = FaultProxy(0)
        proxy.refusing = True
        refused: Deferred[None] = Deferred()
        proxy.on_refused = lambda: refused.callback(None)
        parts = {**extensions.parse_dsn(self.dsn), "port": str(proxy.port)}
        listener = self.listener(extensions.make_dsn(**parts), "one")
        listener.start()
        await refused
        await proxy.stop()
        await listener.stop()
