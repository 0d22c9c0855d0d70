"""A real PostgreSQL primary and an asynchronous standby, to test failovers that lose commits."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from synrepl.storage.launch.postgres import PostgresServer


class PrimaryAndStandby:
    """A primary and a standby in one directory. The methods block.

    :param folder: the directory; must not exist, and its parent must be accessible to other users
    :param fsync: as for :class:`.PostgresServer`
    """

    def __init__(self, folder: Path, *, fsync: bool = False) -> None:
        folder.mkdir()
        folder.chmod(0o755)  # whatever the umask: PostgreSQL may run as another user
        self.primary = PostgresServer(folder / "primary", fsync=fsync)
        self.standby = PostgresServer(folder / "standby", fsync=fsync)

    def start(self) -> str:
        """Start both servers, the standby as a copy of the primary.

        :returns: a DSN that connects to the one that accepts writes
        """
        self.primary.start()
        self.primary.stop()  # so that its folder can be copied
        copy = self.standby.data_dir
        copy_data_dir(self.primary.data_dir, copy)
        owner = (self.primary.data_dir / "postgres").stat()
        self.primary.start()
        settings = copy / "postgres" / "postgresql.auto.conf"
        with settings.open("a") as file:
            file.write(f"primary_conninfo = '{self.primary.dsn}'\n")
        signal = copy / "postgres" / "standby.signal"
        signal.touch(mode=0o600)
        os.chown(signal, owner.st_uid, owner.st_gid)
        self.standby.start()
        first, second = urlsplit(self.primary.dsn), urlsplit(self.standby.dsn)
        user = first.netloc.rpartition("@")[0]
        hosts = f"{first.hostname}:{first.port},{second.hostname}:{second.port}"
        return f"postgresql://{user}@{hosts}{first.path}?target_session_attrs=read-write"

    def stop(self) -> None:
        """Stop both servers."""
        self.standby.stop()
        self.primary.stop()

    def has_caught_up(self) -> bool:
        """Whether the standby has replayed everything that the primary has written."""
        there = _ask(self.primary, "SELECT pg_current_wal_insert_lsn()")
        return _ask(self.standby, f"SELECT pg_last_wal_replay_lsn() >= '{there}'") == "t"

    def disconnect(self) -> None:
        """Stop replication to the standby: commits from now on are lost by a failover."""
        _ask(self.standby, "ALTER SYSTEM SET primary_conninfo = ''")
        _ask(self.standby, "SELECT pg_reload_conf()")

    def is_disconnected(self) -> bool:
        """Whether the standby has stopped receiving."""
        return _ask(self.standby, "SELECT count(*) FROM pg_stat_wal_receiver") == "0"

    def fail_over(self) -> None:
        """Stop the primary, and promote the standby."""
        self.primary.stop()
        self.promote()

    def promote(self) -> None:
        """Promote the standby; the primary keeps running."""
        _ask(self.standby, "SELECT pg_promote()")


def copy_data_dir(data_dir: Path, copy: Path) -> None:
    """Copy the folder of a stopped server, with the owners of its files.

    :param copy: must not exist
    """
    shutil.copytree(data_dir, copy, symlinks=True)
    for path in (copy, *copy.rglob("*")):
        own = (data_dir / path.relative_to(copy)).lstat()
        os.chown(path, own.st_uid, own.st_gid, follow_symlinks=False)


def _ask(server: PostgresServer, sql: str) -> str:
    """Run a statement; the result as text."""
    asked = subprocess.run(  # noqa: S603
        [server.program("psql"), "-X", "-A", "-t", "-q", "-c", sql],
        env={**os.environ, **server.client_environment()},
        check=True,
        capture_output=True,
        text=True,
    )
    return asked.stdout.strip()
