"""A failover from a primary that hangs: connections to it stay open, but never answer."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from psycopg2 import extensions
from twisted.internet.defer import Deferred

from synrepl.adapters.postgres.session import open_session
from synrepl.core.errors import Unavailable
from synrepl.core.tokens import Token
from synrepl.services.writing.commit_listener import NullCommitListener
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import DatabaseSession
from synrepl.storage.incarnations import MARGIN
from tests.adapters.fault_proxy import FaultProxy
from tests.services.world import RecordingLog
from tests.storage.failover import FailoverCase
from tests.storage.postgres import Process, reactor
from tests.storage.samples import NOTES, note


class TwoWays(Process):
    """A process whose sessions connect to the database by another route than its pool.

    :ivar sessions_by: the DSN of sessions
    """

    sessions_by = ""

    async def open_session(self) -> DatabaseSession:
        session = await open_session(reactor, self.sessions_by, self.name)
        self.sessions.append(session)
        return session


class HungSession(FailoverCase):
    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.dsn = self.servers.primary.dsn
        self.pool_proxy, pool_dsn = self.way()
        self.session_proxy, session_dsn = self.way()
        process = TwoWays(pool_dsn, "one")
        process.sessions_by = session_dsn
        self.addCleanup(lambda: Deferred.fromCoroutine(process.close()))
        self.writer = StreamWriter(
            process.scheduler, process.store, "one", [NOTES], NullCommitListener(), RecordingLog()
        )
        await self.writer.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(self.writer.stop()))

    def way(self) -> tuple[FaultProxy, str]:
        """A proxy to the primary, and the DSN of the proxy."""
        proxy = FaultProxy(urlsplit(self.dsn).port or 0)
        self.addCleanup(lambda: Deferred.fromCoroutine(proxy.stop()))
        parts = {**extensions.parse_dsn(self.dsn), "port": proxy.port}
        return proxy, extensions.make_dsn(**parts)

    async def append(self) -> Sequence[Token]:
        """Append, and retry until it succeeds."""
        while True:
            try:
                return (await self.writer.append(NOTES, [[note("a")]])).tokens
            except Unavailable:
                await self.tick()

    async def test_a_writer_takes_its_name_at_the_new_server(self) -> None:
        await self.append()
        await self.disconnect()
        self.servers.promote()
        self.session_proxy.freeze()
        for proxy in (self.pool_proxy, self.session_proxy):
            proxy.target = urlsplit(self.servers.standby.dsn).port or 0
        for side in list(self.pool_proxy.sides):
            side.transport.abortConnection()
        master = Process(self.servers.standby.dsn, "master")
        self.addCleanup(lambda: Deferred.fromCoroutine(master.close()))
        await master.store.confirm({})
        (token,) = await self.append()
        self.assertGreater(token, MARGIN)
