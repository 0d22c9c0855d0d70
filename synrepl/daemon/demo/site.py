"""The demo's directory: a configuration for each process, their logs and the data."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from synrepl.core.errors import Refused
from synrepl.daemon.config import LOOPBACK
from synrepl.daemon.config_redis import Redis
from synrepl.daemon.demo.tally import Tally
from synrepl.daemon.demo.traffic import ORDER_COLUMNS, ORDERS
from synrepl.streams.definition import Generation

SERVER_NAME = "demo.example"
MASTER = "master"

#: Below those that systems give to outgoing connections, which would take the
#: port of a master that is being restarted.
_PORTS = range(10_000, 32_000)


#: Who appends to which streams with Redis, where it is not the master alone.
_WRITERS = {ORDERS: (MASTER, "writer"), "to_device": ("writer",)}


class NotEmpty(Refused):
    """{directory} is not empty, and the demo writes into a directory of its own; name another one"""


@dataclass(frozen=True, slots=True)
class Worker:
    """One of the workers.

    :ivar delay: how long it takes over each row
    :ivar port: of its HTTP listener
    :ivar over_redis: it hears of facts over Redis, not TCP
    """

    name: str
    dialect: Literal["modern", "legacy"]
    delay: str
    port: int
    over_redis: bool = False

    @property
    def is_linear(self) -> bool:
        """It knows one number per stream."""
        return self.dialect == "legacy"

    @property
    def generation(self) -> Generation:
        """Whose streams and row shapes it gets."""
        return Generation.CURRENT if self.over_redis else Generation(self.dialect)

    @property
    def url(self) -> str:
        """Of its HTTP listener."""
        return _url(self.port)


class Site:
    """Where the processes of one run are, and how they are configured.

    :param directory: empty, or not there yet
    :param redis: where modern workers hear of facts, and one of them writes, too; None without
    """

    def __init__(self, directory: Path, redis: Redis | None = None) -> None:
        self.directory = directory
        over_redis = redis is not None
        ports = (port for port in free_ports() if redis is None or port != redis.port)
        self.port, self.http_port, self._postgres_port = next(ports), next(ports), next(ports)
        self.mortal = Worker("mortal", "modern", "0ms", next(ports), over_redis)
        self.slow = Worker("slow", "modern", "0.25ms", next(ports), over_redis)
        self.legacy = Worker("legacy", "legacy", "0ms", next(ports))
        self.workers: tuple[Worker, ...] = (self.mortal, self.slow, self.legacy)
        self._redis = redis
        self._writers = _WRITERS if over_redis else {}
        if over_redis:
            self.workers += (Worker("writer", "modern", "0ms", next(ports), over_redis),)

    @property
    def url(self) -> str:
        """Of the master's HTTP listener."""
        return _url(self.http_port)

    @property
    def dsn(self) -> str:
        """Of the database, while the master runs."""
        return (self.directory / "data" / "postgres.dsn").read_text(encoding="utf-8").strip()

    def writers_of(self, stream: str) -> Sequence[str]:
        """The processes at which facts of a stream can be appended."""
        return self._writers.get(stream, (MASTER,))

    def config(self, name: str) -> Path:
        """The configuration of a process."""
        return self.directory / f"{name}.yaml"

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self.directory / f"{name}.log"

    def write(self) -> None:
        """Make the directory and the configurations.

        :raises NotEmpty: there is something in it
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        if any(self.directory.iterdir()):
            raise NotEmpty(directory=self.directory)
        if os.geteuid() == 0:
            # PostgreSQL will run as somebody else, who has to get through here.
            self.directory.chmod(self.directory.stat().st_mode | 0o011)
        self._write(MASTER, self._master())
        for worker in self.workers:
            self._write(worker.name, self._worker(worker))

    def _write(self, name: str, settings: dict[str, Any]) -> None:
        text = yaml.safe_dump(settings, sort_keys=False, default_flow_style=None)
        self.config(name).write_text(text, encoding="utf-8")

    def _common(self, name: str) -> dict[str, Any]:
        return {
            "server_name": SERVER_NAME,
            "instance_name": name,
            "data_dir": "data",
            "database": "embedded",
            "streams": [{"name": ORDERS, "columns": ORDER_COLUMNS}],
            "stream_writers": {stream: list(names) for stream, names in self._writers.items()},
        }

    def _master(self) -> dict[str, Any]:
        return {
            **self._common(MASTER),
            "embedded": {"port": self._postgres_port},
            "listeners": [{"port": self.port}],
            "http": {"port": self.http_port},
            **self._redis_section(self._redis),
        }

    def _worker(self, worker: Worker) -> dict[str, Any]:
        tally = f"{Tally.__module__}:{Tally.__qualname__}"
        return {
            **self._common(worker.name),
            "database_pool": {"max": 4},
            "master": {"host": LOOPBACK, "port": self.port, "http_url": self.url},
            "dialect": worker.dialect,
            **self._redis_section(self._redis if worker.over_redis else None),
            "http": {"port": worker.port},
            "handlers": [
                {"class": tally, "config": {"worker": worker.name, "delay": worker.delay}}
            ],
        }

    def _redis_section(self, redis: Redis | None) -> dict[str, Any]:
        if redis is None:
            return {}
        where: dict[str, Any] = {"host": redis.host, "port": redis.port}
        if redis.path is not None:
            where = {"path": str(redis.path.absolute())}
        if redis.username is not None:
            where["username"] = redis.username
        if redis.password is not None:
            secret = self.directory / "redis.secret"
            secret.touch(mode=0o600)
            secret.write_text(redis.password.reveal(), encoding="utf-8")
            where["password_path"] = secret.name
        if redis.ca_file is not None:
            where["ca_file"] = str(redis.ca_file.absolute())
        flags = {"database": redis.database, "tls": redis.tls, "insecure": redis.insecure}
        return {"redis": {**where, **flags}}


def _url(port: int) -> str:
    return f"http://{LOOPBACK}:{port}"


def free_ports() -> Iterator[int]:
    """Ports of this machine on which nobody listens now, none of them twice."""
    for port in random.sample(_PORTS, len(_PORTS)):
        try:
            socket.create_server((LOOPBACK, port)).close()
        except OSError:
            continue
        yield port
