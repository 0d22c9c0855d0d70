"""The processes of one demo run: their configurations, ports, logs and data in one directory."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM, Signals
from typing import Any, Literal

import yaml

from synrepl.cli.demo.recorder import FactRecorder
from synrepl.cli.demo.traffic import ORDER_COLUMNS, ORDERS
from synrepl.core.clock import Scheduler
from synrepl.core.errors import Refused, Unavailable
from synrepl.daemon.config.config import LOOPBACK
from synrepl.daemon.config.redis import RedisConfig
from synrepl.storage.launch.child import Account, guarded
from synrepl.streams.definition import Generation

SERVER_NAME = "demo.example"
MASTER = "master"

#: Below the ephemeral port range: an outgoing connection must not take the port of a master
#: that is being restarted.
_PORTS = range(10_000, 32_000)

#: With Redis, the writers of streams that the master does not write alone.
_WRITERS = {ORDERS: (MASTER, "writer"), "to_device": ("writer",)}

#: Seconds that a daemon may take to stop after SIGTERM.
_STOP_TIMEOUT_S = 20.0

_POLL_INTERVAL_S = 0.02


class NotEmpty(Refused):
    """{directory} is not empty, and the demo writes into a directory of its own; name another one"""


class DaemonEnded(Unavailable):
    """the {role} {name!r} ended by itself ({status}); its log {log} ends: {tail}"""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker of the deployment.

    :ivar delay: time that its handler takes per row, such as ``"0.25ms"``
    :ivar port: port of its HTTP listener
    :ivar over_redis: whether it follows over Redis instead of TCP
    """

    name: str
    dialect: Literal["modern", "legacy"]
    delay: str
    port: int
    over_redis: bool = False

    @property
    def is_linear(self) -> bool:
        """Whether its dialect has one position per stream, not one per writer."""
        return self.dialect == "legacy"

    @property
    def generation(self) -> Generation:
        """The generation that determines its streams and row formats."""
        return Generation.CURRENT if self.over_redis else Generation(self.dialect)

    @property
    def url(self) -> str:
        """The URL of its HTTP listener."""
        return _url(self.port)


class Deployment:
    """Directory, ports and configurations of the processes of one run.

    :param directory: empty, or does not exist yet
    :param redis: where modern workers follow, and a fourth one also writes; None for TCP only
    """

    def __init__(self, directory: Path, redis: RedisConfig | None = None) -> None:
        self.directory = directory
        over_redis = redis is not None
        ports = (port for port in free_ports() if redis is None or port != redis.port)
        self.port, self.http_port, self._postgres_port = next(ports), next(ports), next(ports)
        self.flaky = WorkerSpec("flaky", "modern", "0ms", next(ports), over_redis)
        self.slow = WorkerSpec("slow", "modern", "0.25ms", next(ports), over_redis)
        self.legacy = WorkerSpec("legacy", "legacy", "0ms", next(ports))
        self.workers: tuple[WorkerSpec, ...] = (self.flaky, self.slow, self.legacy)
        self._redis = redis
        self._writers = _WRITERS if over_redis else {}
        if over_redis:
            self.workers += (WorkerSpec("writer", "modern", "0ms", next(ports), over_redis),)

    @property
    def url(self) -> str:
        """The URL of the master's HTTP listener."""
        return _url(self.http_port)

    @property
    def dsn(self) -> str:
        """The DSN of the embedded database; exists while the master runs."""
        return (self.directory / "data" / "postgres.dsn").read_text(encoding="utf-8").strip()

    def writers_of(self, stream: str) -> Sequence[str]:
        """The names of the processes that accept facts of a stream."""
        return self._writers.get(stream, (MASTER,))

    def config(self, name: str) -> Path:
        """The configuration file of a process."""
        return self.directory / f"{name}.yaml"

    def process(self, scheduler: Scheduler, name: str) -> DaemonSubprocess:
        """A process of the deployment, not started yet."""
        log = self.directory / f"{name}.log"
        role = "master" if name == MASTER else "worker"
        return DaemonSubprocess(scheduler, role, name, self.config(name), log)

    def write(self) -> None:
        """Create the directory and the configuration files.

        :raises NotEmpty: the directory has content
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        if any(self.directory.iterdir()):
            raise NotEmpty(directory=self.directory)
        if os.geteuid() == 0:
            # PostgreSQL runs as another user then, who must be able to enter.
            self.directory.chmod(self.directory.stat().st_mode | 0o011)
        self._write(MASTER, self._master_settings())
        for worker in self.workers:
            self._write(worker.name, self._worker_settings(worker))

    def _write(self, name: str, settings: dict[str, Any]) -> None:
        text = yaml.safe_dump(settings, sort_keys=False, default_flow_style=None)
        self.config(name).write_text(text, encoding="utf-8")

    def _common_settings(self, name: str) -> dict[str, Any]:
        return {
            "server_name": SERVER_NAME,
            "instance_name": name,
            "data_dir": "data",
            "database": "embedded",
            "streams": [{"name": ORDERS, "columns": ORDER_COLUMNS}],
            "stream_writers": {stream: list(names) for stream, names in self._writers.items()},
        }

    def _master_settings(self) -> dict[str, Any]:
        return {
            **self._common_settings(MASTER),
            "embedded": {"port": self._postgres_port},
            "listeners": [{"port": self.port}],
            "http": {"port": self.http_port},
            **self._redis_settings(self._redis),
        }

    def _worker_settings(self, worker: WorkerSpec) -> dict[str, Any]:
        recorder = f"{FactRecorder.__module__}:{FactRecorder.__qualname__}"
        return {
            **self._common_settings(worker.name),
            "database_pool": {"max": 4},
            "master": {"host": LOOPBACK, "port": self.port, "http_url": self.url},
            "dialect": worker.dialect,
            **self._redis_settings(self._redis if worker.over_redis else None),
            "http": {"port": worker.port},
            "handlers": [
                {"class": recorder, "config": {"worker": worker.name, "delay": worker.delay}}
            ],
        }

    def _redis_settings(self, redis: RedisConfig | None) -> dict[str, Any]:
        if redis is None:
            return {}
        settings: dict[str, Any] = {"host": redis.host, "port": redis.port}
        if redis.path is not None:
            settings = {"path": str(redis.path.absolute())}
        if redis.username is not None:
            settings["username"] = redis.username
        if redis.password is not None:
            secret = self.directory / "redis.secret"
            secret.touch(mode=0o600)
            secret.write_text(redis.password.reveal(), encoding="utf-8")
            settings["password_path"] = secret.name
        if redis.ca_file is not None:
            settings["ca_file"] = str(redis.ca_file.absolute())
        flags = {"database": redis.database, "tls": redis.tls, "insecure": redis.insecure}
        return {"redis": {**settings, **flags}}


class DaemonSubprocess:
    """``synrepl master`` or ``synrepl worker`` as a child process.

    The kernel terminates it when the demo ends, however that happens.

    :param role: the sub-command
    :param log: receives its output; appended to at each start
    :param environment: its environment variables; None to inherit those of this process
    """

    def __init__(
        self,
        scheduler: Scheduler,
        role: str,
        name: str,
        config: Path,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._scheduler = scheduler
        self._role = role
        self._config = config
        self._log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._terminating = False

    @property
    def pid(self) -> int:
        """The process ID of the last start."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process."""
        command = guarded(
            Account(os.geteuid(), os.getegid(), ""),
            Path(sys.executable),
            ["-m", "synrepl", self._role, "-c", str(self._config.absolute())],
            Path.cwd(),
            SIGTERM,
        )
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,  # Ctrl-C goes to the demo, which stops all in order
            )
        self._terminating = False

    def check(self) -> None:
        """Check that the process runs, if it has been started.

        :raises DaemonEnded: it has ended
        """
        code = None if self._process is None else self._process.poll()
        if code is not None:
            status = f"killed by {Signals(-code).name}" if code < 0 else f"exit status {code}"
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            tail = " | ".join(lines[-4:])[-1000:]
            raise DaemonEnded(
                role=self._role, name=self.name, status=status, log=self._log, tail=tail
            )

    def terminate(self) -> None:
        """Send SIGTERM, once; does nothing when the process does not run."""
        if self._process is not None and not self._terminating:
            self._terminating = True
            self._process.terminate()

    async def stop(self) -> None:
        """Stop the process with SIGTERM, or SIGKILL when that takes too long."""
        self.terminate()
        if not await self.wait():
            await self.kill()

    async def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            await self.wait()

    async def wait(self) -> bool:
        """Wait for the process to end; False when the time limit passes first."""
        process, deadline = self._process, self._scheduler.seconds() + _STOP_TIMEOUT_S
        while process is not None and process.poll() is None:
            if self._scheduler.seconds() >= deadline:
                return False
            await self._scheduler.sleep(_POLL_INTERVAL_S)
        return True


def _url(port: int) -> str:
    return f"http://{LOOPBACK}:{port}"


def free_ports() -> Iterator[int]:
    """Ports of this machine that nothing listens on, each once."""
    for port in random.sample(_PORTS, len(_PORTS)):
        try:
            socket.create_server((LOOPBACK, port)).close()
        except OSError:
            continue
        yield port
