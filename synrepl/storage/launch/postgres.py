"""The embedded PostgreSQL server, in one folder.

The folder holds ``postgres`` (the cluster), ``postgres.log``,
``postgres.password`` (a random superuser password), ``postgres.dsn``
(while it runs; for ``psql "$(cat postgres.dsn)"``) and ``postgres.lock`` (held
by the one process that may run it). The server listens on 127.0.0.1 only, always requires
the password, and is shut down when its owner dies.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGQUIT

from synrepl.core.errors import ConfigError, Refused, StorageError
from synrepl.storage.launch.child import Account, Child, guarded, unprivileged
from synrepl.storage.launch.data_dir import named_errors
from synrepl.storage.launch.postgres_binaries import Binaries, find_binaries, usable_binaries
from synrepl.storage.launch.postmaster import PidFile

HOST = "127.0.0.1"
USER = "postgres"
DATABASE = "postgres"

#: Fast shutdown, immediate shutdown and kill, with the wait in seconds after each.
_STOP = ((SIGINT, 30.0), (SIGQUIT, 10.0), (SIGKILL, 10.0))

#: Start-up timeout in seconds; it includes crash recovery, which may read much WAL.
_READY_S = 300.0

#: Delays between attempts while a predecessor releases its resources; about 10 s in all.
_AGAIN_S = (0.05, 0.1, 0.2, 0.5, 1.0, 1.0, 2.0, 2.0, 3.0)

_LOG_TAIL = 1500

_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "shared_buffers": "64MB",
    "max_connections": "60",
    "max_wal_size": "256MB",
    "wal_level": "replica",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "off",
}


#: Settings for data that need not survive a crash of the machine.
_UNSAFE = {"fsync": "off", "full_page_writes": "off", "wal_init_zero": "off"}


class DataDirTaken(Refused):
    """the data folder {directory} is in use by process {pid}; stop that process, or choose another folder"""


class PostgresPortTaken(ConfigError):
    """port {port} on 127.0.0.1 is in use by another program; choose another port for the embedded database, or 0 for any"""


class OtherMajorVersion(ConfigError):
    """the data in {directory} belongs to PostgreSQL {found}, and {binaries} is PostgreSQL {ours}; dump and reload or pg_upgrade it, or install the version it belongs to"""


class PasswordMissing(ConfigError):
    """{path} is gone, and with it the password of the embedded database; restore that file, or set a new password in it and, with 'postgres --single', in the database"""


class InitFailed(StorageError):
    """PostgreSQL's data folder {directory} could not be made: {reason}"""


class StartFailed(StorageError):
    """the embedded PostgreSQL in {directory} did not start ({status}); its log ends: {log}"""


def account_for(data_dir: Path) -> Account:
    """The account that PostgreSQL runs as in this folder; never root."""
    return unprivileged([data_dir / "postgres", data_dir], ["postgres", "nobody"])


class PostgresServer:
    """Runs PostgreSQL in a folder. Its methods block; call them from one thread that outlives it.

    :param data_dir: the folder; created if it does not exist
    :param port: port on 127.0.0.1; 0 for a free one, which then stays the same
    :param prefer_system: run an installed PostgreSQL rather than the pip package's
    :param fsync: False risks the data when the machine crashes: for tests
    """

    def __init__(
        self, data_dir: Path, *, port: int = 0, prefer_system: bool = False, fsync: bool = True
    ) -> None:
        self.data_dir = data_dir.absolute()
        self._given_port = port
        self._port = port
        self._prefer_system = prefer_system
        self._fsync = fsync
        self._cluster = self.data_dir / "postgres"
        self._lock: int | None = None
        self._password = ""
        self._published = False
        self._account = Account(os.geteuid(), os.getegid(), "")
        self._binaries = Binaries(Path(), 0)
        self.child: Child | None = None

    @property
    def dsn(self) -> str:
        """The DSN of the server, with the password."""
        return f"postgresql://{USER}:{self._password}@{HOST}:{self._port}/{DATABASE}"

    def program(self, name: str) -> Path:
        """The path of ``psql``, ``createdb`` and so on of this version, once it runs."""
        return self._binaries.program(name)

    def client_environment(self) -> dict[str, str]:
        """Environment variables that make such programs connect to this server."""
        return {
            "PGHOST": HOST,
            "PGPORT": str(self._port),
            "PGUSER": USER,
            "PGPASSWORD": self._password,
        }

    def start(self) -> str:
        """Start it, clean up after a former owner, and wait until it accepts connections.

        :returns: the DSN
        :raises DataDirTaken: another process runs it
        :raises PostgresPortTaken: the requested port is not free
        :raises StartFailed: it does not start, or not in time
        :raises DataDirUnusable:
        :raises DataDirFull:
        """
        with named_errors(self.data_dir):
            self._start()
        return self.dsn

    def _start(self) -> None:
        try:
            self._take_lock()
            self._account = account_for(self.data_dir)
            if self._account.uid != os.geteuid():
                self.data_dir.chmod(self.data_dir.stat().st_mode | 0o011)  # secrets in it are 0600
            found = find_binaries(self._prefer_system)
            self._binaries = usable_binaries(found, self._account, self.data_dir)
            self._prepare_cluster()
            PidFile(self._cluster).stop_previous_server(_STOP)
            self._run()
            _write_secret(self.data_dir / "postgres.dsn", self.dsn)
            self._published = True
        except BaseException:
            self.stop()
            raise

    def restart(self) -> None:
        """Start it again after it ended by itself, on the same port.

        :raises PostgresPortTaken: the port is no longer free
        :raises StartFailed: it does not start, or not in time
        """
        self._run()

    def stop(self) -> None:
        """Stop it if it runs, and release the folder."""
        if self.child is not None:
            self.child.end(_STOP)
            self.child = None
        self._published = False
        if self._lock is not None:
            (self.data_dir / "postgres.dsn").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def log_tail(self) -> str:
        """The end of the server's log, on one line."""
        try:
            text = (self.data_dir / "postgres.log").read_text(errors="replace")
        except OSError as error:
            return str(error)
        return " | ".join(text[-_LOG_TAIL:].splitlines()[-8:])

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.data_dir / "postgres.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
            os.close(lock)
            raise DataDirTaken(directory=self.data_dir, pid=holder or "?") from None
        self._lock = lock
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    def _prepare_cluster(self) -> None:
        password = self.data_dir / "postgres.password"
        if not self._cluster.exists():
            self._password = secrets.token_urlsafe(24)
            _write_secret(password, self._password)
            self._make_cluster()
            return
        if not password.exists():
            raise PasswordMissing(path=password)
        self._password = password.read_text().strip()
        found = (self._cluster / "PG_VERSION").read_text().strip()
        if found != str(self._binaries.major):
            raise OtherMajorVersion(
                directory=self._cluster,
                found=found,
                binaries=self._binaries.directory,
                ours=self._binaries.major,
            )

    def _make_cluster(self) -> None:
        """Initialise a folder beside the real one and rename it, so that it is never incomplete."""
        fresh = self.data_dir / "postgres.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        password = self.data_dir / "initdb.password"
        _write_secret(password, self._password)
        try:
            if self._account.uid != os.geteuid():
                os.chown(fresh, self._account.uid, self._account.gid)
                os.chown(password, self._account.uid, self._account.gid)
            arguments = [
                f"--pgdata={fresh}",
                f"--username={USER}",
                f"--pwfile={password}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--data-checksums",
                *([] if self._fsync else ["--no-sync"]),
            ]
            initdb = self._binaries.program("initdb")
            done = subprocess.run(  # noqa: S603
                guarded(self._account, initdb, arguments, fresh, SIGKILL),
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_READY_S,
                check=False,
            )
        finally:
            password.unlink()
        if done.returncode != 0:
            reason = " | ".join(done.stderr.splitlines()[-8:])
            raise InitFailed(directory=fresh, reason=reason)
        fresh.rename(self._cluster)

    def _run(self) -> None:
        for again_s in (*_AGAIN_S, None):
            if not self._port:
                self._port = _free_port()
            elif self._given_port and _is_taken(self._port):
                raise PostgresPortTaken(port=self._port)
            try:
                self._run_once()
                return
            except StartFailed as error:
                if not (self._published or self._given_port) and _is_taken(self._port):
                    self._port = (
                        0  # lost a race for the port, which is not published yet, so take another
                    )
                elif "shared memory block" not in str(
                    error
                ):  # held by orphans that are just exiting
                    raise
                if again_s is None:
                    raise
                time.sleep(again_s)

    def _run_once(self) -> None:
        settings = {**_SETTINGS, **({} if self._fsync else _UNSAFE), "port": str(self._port)}
        arguments = ["-D", str(self._cluster)]
        for name, value in settings.items():
            arguments += ["-c", f"{name}={value}"]
        log = self.data_dir / "postgres.log"
        if log.exists():
            log.replace(log.with_name("postgres.log.1"))
        program = self._binaries.program("postgres")
        # SIGQUIT, unlike SIGKILL, lets it take its own children with it.
        command = guarded(self._account, program, arguments, self._cluster, SIGQUIT)
        with log.open("wb") as output:
            log.chmod(0o600)
            self.child = Child(command, output)
        self._wait_until_ready(self.child)

    def _wait_until_ready(self, child: Child) -> None:
        pid_file = PidFile(self._cluster)
        give_up = time.monotonic() + _READY_S
        while not pid_file.is_ready(child.pid):
            if child.gone(0.01):
                self.child = None
                raise self._not_started(child.status())
            if time.monotonic() > give_up:
                raise self._not_started(f"not ready after {_READY_S:.0f} s")

    def _not_started(self, status: str) -> StartFailed:
        return StartFailed(directory=self.data_dir, status=status, log=self.log_tail())


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _is_taken(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return True
    return False


def _write_secret(path: Path, text: str) -> None:
    """Write a file atomically that only its owner may read."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
