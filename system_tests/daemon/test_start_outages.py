"""Masters and workers whose database goes away while they start."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from psycopg2 import extensions
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from synrepl.core.retry import BackOff
from synrepl.daemon import database
from synrepl.daemon import master as daemon_master
from synrepl.daemon import worker as daemon_worker
from synrepl.daemon.config.config import load_master, load_worker
from synrepl.daemon.database_wait import DatabaseWait
from synrepl.daemon.master import MasterProcess
from synrepl.daemon.process import DaemonProcess
from synrepl.daemon.worker import WorkerProcess
from synrepl.testing.postgres import fresh_database
from tests.adapters.fault_proxy import FaultProxy
from tests.cli.cli_case import free_port

COMMON = """
server_name: example.com
catalogue: [caches]
streams: [{name: orders, columns: {order_id: text}}]
stream_writers: {orders: [master, worker1]}
handlers: ["tests.daemon.recording_handlers:QueryOnStart"]
"""


class OutagesAtTheStart(TestCase):
    """A proxy ends all connections at the first, second, third … query of a start."""

    timeout = 400

    async def setUp(self) -> None:  # type: ignore[override]
        self.patch(database, "GIVE_UP_S", 0.0)  # an outage is reported at once
        impatient = partial(DatabaseWait, back_off=BackOff(0.01, 5.0))
        for process in (daemon_master, daemon_worker):
            self.patch(process, "DatabaseWait", impatient)
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.direct = await fresh_database(self)
        given = extensions.parse_dsn(self.direct)
        self.proxy = FaultProxy(int(given["port"]))
        self.addCleanup(lambda: Deferred.fromCoroutine(self.proxy.stop()))
        self.dsn = extensions.make_dsn(**{**given, "port": self.proxy.port})

    def configure(self, name: str, dsn: str, text: str = "") -> list[Path]:
        path = self.directory / f"{name}.yaml"
        path.write_text(f"{COMMON}database: {dsn}\n{text}")
        path.chmod(0o600)
        return [path]

    def master(self) -> MasterProcess:
        return MasterProcess(reactor, load_master(self.configure("master", self.dsn)))

    def worker(self) -> WorkerProcess:
        text = f"instance_name: worker1\nmaster: {{port: {free_port()}}}\n"
        return WorkerProcess(reactor, load_worker(self.configure("worker", self.dsn, text)))

    async def cut_everywhere(self, make: Callable[[], DaemonProcess[Any]]) -> int:
        """Start processes, each cut one query later; the number of queries of a start."""
        for n in count(1):
            self.proxy.cut_at = n
            process: Any = make()
            try:
                await process.start()
            except Exception as error:
                raise AssertionError(f"cut at query {n}: {error!r}") from error
            finally:
                was_cut, self.proxy.cut_at = self.proxy.cut_at is None, None
                await process.stop()
            if not was_cut:
                return n
        raise AssertionError("unreachable")

    async def test_a_master_waits_at_every_query_of_its_start(self) -> None:
        first = self.master()
        await first.start()
        await first.stop()
        self.assertGreater(await self.cut_everywhere(self.master), 30)

    async def test_a_worker_waits_at_every_query_of_its_start(self) -> None:
        config = load_master(self.configure("master", self.direct))
        master = MasterProcess(reactor, config)
        await master.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(master.stop()))
        self.assertGreater(await self.cut_everywhere(self.worker), 20)
