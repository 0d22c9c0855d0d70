"""A real Synapse server of eight processes, which communicate over Redis."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Self

from interop.processes import LOOPBACK, Process, free_ports
from interop.synapse import ServerDirectory, http_listener, listener

MAIN = "main"

_WORKER_APP = "synapse.app.generic_worker"

#: The writers of each stream; other streams are written by the main process.
WRITERS: Mapping[str, Sequence[str]] = {
    "events": ("persister1", "persister2"),
    "receipts": ("writer1", "writer2"),
    "device_lists": ("writer1", "writer2"),
    "typing": ("writer1",),
    "to_device": ("writer1",),
    "account_data": ("writer1",),
    "presence": ("writer1",),
    "push_rules": ("writer1",),
}

#: The main process and seven workers.
NAMES = (
    MAIN,
    *("persister1", "persister2", "writer1", "writer2"),
    *("sync1", "sender1", "pusher1"),
)

#: Which processes answer requests; all other requests go to the main process.
_ROUTES = tuple(
    (re.compile(pattern), names)
    for pattern, names in (
        (r"/rooms/[^/]+/typing", ("writer1",)),
        (r"/sendToDevice/|/account_data|/tags|/presence/|/pushrules/", ("writer1",)),
        (r"/rooms/[^/]+/receipt|/devices/|/keys/upload", ("writer1", "writer2")),
        (
            r"/rooms/[^/]+/(send|redact|state|join|invite|leave)",
            ("persister1", "persister2", "sync1"),
        ),
        (r"/sync\b", ("sync1",)),
    )
)

#: Time limit for a start, in seconds: seven processes start at once on few cores.
_STARTS_S = 180.0


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a process.

    :ivar http: for other processes of the server
    """

    client: int
    http: int
    metrics: int

    @classmethod
    def free(cls) -> Self:
        """Choose ports that are free at the moment."""
        return cls(*free_ports(3))

    @property
    def address(self) -> dict[str, Any]:
        """Its entry in ``instance_map``."""
        return {"host": LOOPBACK, "port": self.http}


def over_redis(
    port: int, instances: Mapping[str, Ports], writers: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """The shared configuration of processes that use Redis.

    :param port: port of Redis
    :param writers: the writers of each stream; streams without an entry are the main process's
    """
    return {
        "redis": {"enabled": True, "host": LOOPBACK, "port": port},
        "instance_map": {name: ports.address for name, ports in instances.items()},
        "stream_writers": {stream: list(names) for stream, names in writers.items()},
    }


@dataclass(slots=True)
class Instance:
    """One process of a server, from its start.

    :ivar shared: path of the configuration that all processes of the server share
    :ivar name: its name, also the ``application_name`` of its database connections
    """

    server_directory: ServerDirectory
    shared: Path
    name: str
    ports: Ports
    process: Process = field(init=False)

    def __post_init__(self) -> None:
        listeners = [
            http_listener(self.ports.client, "client"),
            http_listener(self.ports.http, "replication"),
            listener(self.ports.metrics, "metrics"),
        ]
        arguments = {**self.server_directory.database, "application_name": self.name}
        content: dict[str, Any] = {"database": {"name": "psycopg2", "args": arguments}}
        pid_file = str(self.server_directory.directory / f"{self.name}.pid")
        log_config = str(self.server_directory.log_config(self.name))
        if self.name == MAIN:
            app = "synapse.app.homeserver"
            content |= {"listeners": listeners, "pid_file": pid_file, "log_config": log_config}
        else:
            app = _WORKER_APP
            content |= {
                "worker_app": app,
                "worker_name": self.name,
                "worker_listeners": listeners,
                "worker_pid_file": pid_file,
                "worker_log_config": log_config,
            }
        files = [self.shared, self.server_directory.write(f"{self.name}.yaml", content)]
        self.process = self.server_directory.start(self.name, app, files)

    def ready(self) -> None:
        """Wait until it listens on all its ports.

        :raises ProcessEnded: :raises NotInTime:
        """
        for port in (self.ports.client, self.ports.http, self.ports.metrics):
            self.process.listens_on(port, _STARTS_S)


class EightProcesses:
    """A whole server; a context manager, which starts and ends its processes.

    :param server_directory: its files, without settings for Redis
    :param redis: port of Redis
    :ivar instances: its processes, by name
    """

    def __init__(self, server_directory: ServerDirectory, redis: int) -> None:
        self._ports = {name: Ports.free() for name in NAMES}
        self._home = replace(server_directory, more=over_redis(redis, self._ports, WRITERS))
        self._turns = [(pattern, cycle(names)) for pattern, names in _ROUTES]
        self._stack = ExitStack()
        self.instances: dict[str, Instance] = {}

    def port(self, path: str) -> int:
        """The port for a client's request; processes that share a path take turns."""
        for pattern, names in self._turns:
            if pattern.search(path):
                return self._ports[next(names)].client
        return self._ports[MAIN].client

    def check_running(self) -> None:
        """Check that all processes are running.

        :raises ProcessEnded: one has ended
        """
        for instance in self.instances.values():
            instance.process.still_runs()

    def __enter__(self) -> Self:
        with self._stack:
            shared = self._home.shared()
            for names in (NAMES[:1], NAMES[1:]):  # the main process prepares the database
                started = [self._start(shared, name) for name in names]
                for instance in started:
                    instance.ready()
            self._stack = self._stack.pop_all()
        return self

    def _start(self, shared: Path, name: str) -> Instance:
        instance = Instance(self._home, shared, name, self._ports[name])
        self._stack.enter_context(instance.process)
        self.instances[name] = instance
        return instance

    def __exit__(self, *_: object) -> None:
        self._stack.close()
