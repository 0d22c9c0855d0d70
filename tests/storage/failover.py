"""A primary and an asynchronous standby that is promoted without the primary's last commits."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from synrepl.storage.launch.postgres import PostgresServer
from tests.driver.embedded import new_folder, one
from tests.storage.postgres import PostgresCase, prepare


class TwoServers:
    """A primary, and a copy of it that follows.

    :ivar dsn: leads to whichever of them takes writes
    """

    def __init__(self, case: Any) -> None:
        self._case = case
        self.primary = self._started(new_folder(case))

    def copy(self) -> None:
        """Make the standby, of what is in the primary by now."""
        self.primary.stop()  # its folder can be copied then
        copy = new_folder(self._case)
        subprocess.run(["cp", "-a", self.primary.data_dir, copy], check=True)
        self.primary.start()
        cluster = copy / "postgres"
        settings = cluster / "postgresql.auto.conf"
        with settings.open("a") as file:
            file.write(f"primary_conninfo = '{self.primary.dsn}'\n")
        shutil.copy2(settings, cluster / "standby.signal")
        owner = cluster.stat()
        shutil.chown(cluster / "standby.signal", owner.st_uid, owner.st_gid)
        self.standby = self._started(copy)
        first, second = urlsplit(self.primary.dsn), urlsplit(self.standby.dsn)
        user = first.netloc.rpartition("@")[0]
        self.dsn = (
            f"postgresql://{user}@127.0.0.1:{first.port},127.0.0.1:{second.port}{first.path}"
            "?target_session_attrs=read-write"
        )

    def has_caught_up(self) -> bool:
        """Whether the standby has all that the primary has."""
        there = one(self.primary.dsn, "SELECT pg_current_wal_insert_lsn()::text")
        return bool(one(self.standby.dsn, f"SELECT pg_last_wal_replay_lsn() >= '{there}'"))

    def disconnect(self) -> None:
        """From now on the standby gets nothing any more."""
        one(self.standby.dsn, "ALTER SYSTEM SET primary_conninfo = ''")
        one(self.standby.dsn, "SELECT pg_reload_conf()")

    def is_disconnected(self) -> bool:
        """Whether it gets nothing."""
        return one(self.standby.dsn, "SELECT count(*) FROM pg_stat_wal_receiver") == 0

    def fail_over(self) -> None:
        """The primary is gone; the standby takes over."""
        self.primary.stop()
        one(self.standby.dsn, "SELECT pg_promote()")

    def _started(self, folder: Path) -> PostgresServer:
        server = PostgresServer(folder, fsync=False)
        server.start()
        self._case.addCleanup(server.stop)
        return server


class FailoverCase(PostgresCase):
    """Two servers with the tables of a few streams."""

    timeout = 120

    async def setUp(self) -> None:  # type: ignore[override]
        self.servers = TwoServers(self)
        await prepare(self.servers.primary.dsn)
        self.servers.copy()
        self.dsn = self.servers.dsn

    async def disconnect(self) -> None:
        """What is committed from now on will be lost."""
        await self.until(self.servers.has_caught_up)
        self.servers.disconnect()
        await self.until(self.servers.is_disconnected)

    def fail_over(self) -> None:
        """The standby takes over, without what was committed since :meth:`disconnect`."""
        self.servers.fail_over()
