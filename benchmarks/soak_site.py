"""The processes of a soak test: their streams, transports and configurations."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.child import REPOSITORY
from benchmarks.soak_recorder import FactFileRecorder
from synrepl.cli.demo.deployment import MASTER, DaemonSubprocess, WorkerSpec, free_ports
from synrepl.cli.demo.recorder import FactRecorder
from synrepl.cli.demo.traffic import ORDER_COLUMNS, ORDERS
from synrepl.core.clock import Scheduler
from synrepl.daemon.config.config import LOOPBACK

SERVER_NAME = "soak.example"

#: Streams that all generations have and whose tables keep every fact.
STREAMS = ("backfill", "device_lists", "events", "presence", "push_rules", "receipts")

#: The writers of each stream; other streams are written by the master only.
WRITERS = {
    ORDERS: (MASTER, "w1", "w2", "w3"),
    "events": ("w1", "w2"),
    "receipts": ("w2", "w3"),
    "backfill": ("w1",),
}

#: A follower with a single handler, which sees facts at least once and uses no database.
PLAIN_ONLY = "plain_only"

#: Workers that have such a handler in addition to the transactional one.
BOTH = ("w1", "plain")


class SoakSite:
    """A master and its workers, in a directory.

    :param redis: path of the unix socket
    :param writers: number of workers that write, at most three
    :param followers: names of the workers that only follow, from the default
    """

    def __init__(
        self,
        directory: Path,
        dsn: str,
        redis: Path,
        writers: int = 3,
        followers: Sequence[str] = ("plain", PLAIN_ONLY, "modern", "legacy"),
    ) -> None:
        self.directory = directory
        self.dsn = dsn
        self._redis = {"path": str(redis)}
        ports = free_ports()
        self.port, self.http_port = next(ports), next(ports)
        names = [f"w{n}" for n in range(1, writers + 1)] + list(followers)
        self.workers = tuple(_worker(name, next(ports)) for name in names)
        there = {MASTER, *names}
        self._writers = {
            stream: [name for name in some if name in there] for stream, some in WRITERS.items()
        }
        secret = directory / "dsn"
        secret.touch(mode=0o600)
        secret.write_text(dsn)
        for name, settings in self._settings().items():
            self.config(name).write_text(json.dumps(settings))  # JSON is YAML

    @property
    def urls(self) -> Mapping[str, str]:
        """The HTTP listeners of all processes."""
        workers = {worker.name: worker.url for worker in self.workers}
        return {MASTER: f"http://{LOOPBACK}:{self.http_port}", **workers}

    @property
    def recorded_files(self) -> Mapping[str, Path]:
        """The files of the plain handlers, by account name."""
        return {
            account.name: self._recorded_file(worker.name)
            for worker, account in zip(self.workers, map(_plain_account, self.workers), strict=True)
            if account is not None
        }

    @property
    def accounts(self) -> Sequence[WorkerSpec]:
        """One account of applied facts per handler."""
        others = filter(None, map(_plain_account, self.workers))
        return (*(each for each in self.workers if each.name != PLAIN_ONLY), *others)

    def writers_of(self, stream: str) -> Sequence[str]:
        """The processes that accept appends to a stream."""
        return self._writers.get(stream, (MASTER,))

    def config(self, name: str) -> Path:
        """Path of a process's configuration."""
        return self.directory / f"{name}.yaml"

    def log(self, name: str) -> Path:
        """Path of a process's log."""
        return self.directory / f"{name}.log"

    def process(self, scheduler: Scheduler, name: str) -> DaemonSubprocess:
        """A process that is not started yet."""
        role = "master" if name == MASTER else "worker"
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        return DaemonSubprocess(
            scheduler, role, name, self.config(name), self.log(name), environment
        )

    def _recorded_file(self, worker: str) -> Path:
        return self.directory / f"{worker}.notes"

    def _settings(self) -> dict[str, dict[str, Any]]:
        master = {
            **self._common(MASTER, self.http_port),
            "listeners": [{"port": self.port}],
            "redis": self._redis,
        }
        return {MASTER: master, **{each.name: self._follower(each) for each in self.workers}}

    def _common(self, name: str, http_port: int) -> dict[str, Any]:
        return {
            "server_name": SERVER_NAME,
            "instance_name": name,
            "database_path": "dsn",
            "database_pool": {"max": 4},
            "catalogue": list(STREAMS),
            "streams": [{"name": ORDERS, "columns": ORDER_COLUMNS}],
            "stream_writers": self._writers,
            "http": {"port": http_port},
        }

    def _follower(self, worker: WorkerSpec) -> dict[str, Any]:
        handlers: list[dict[str, Any]] = []
        if worker.name != PLAIN_ONLY:
            handlers.append({"class": _name(FactRecorder), "config": {"worker": worker.name}})
        if _plain_account(worker) is not None:
            path = str(self._recorded_file(worker.name))
            handlers.append({"class": _name(FactFileRecorder), "config": {"path": path}})
        return {
            **self._common(worker.name, worker.port),
            "master": {"host": LOOPBACK, "port": self.port},
            "dialect": worker.dialect,
            "handlers": handlers,
            **({"redis": self._redis} if worker.over_redis else {}),
        }


def _worker(name: str, port: int) -> WorkerSpec:
    if name == "legacy":
        return WorkerSpec(name, "legacy", "0ms", port)
    return WorkerSpec(name, "modern", "0ms", port, over_redis=name != "modern")


def _plain_account(worker: WorkerSpec) -> WorkerSpec | None:
    """The account of a worker's plain handler; None if it has none."""
    if worker.name == PLAIN_ONLY:
        return worker
    return replace(worker, name=f"{worker.name}_notes") if worker.name in BOTH else None


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
