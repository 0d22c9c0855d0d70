"""A master and a worker that take part in federation, as a user sets them up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from interop.federation.client import Client
from interop.federation.gate import Gate, named
from interop.matrix_client import q
from interop.processes import LOOPBACK, Process, free_ports
from interop.synrepl_processes import ready, request, start, synrepl
from synrepl.core.errors import Unavailable
from tests.adapters.federation.authorities import Authority

#: No program is to be slowed down by limits for people.
_MUCH = {"per_second": 1_000, "burst": 100_000}


class RoomUnreadable(Unavailable):
    """GET {path} was answered with {status}: {reason}"""


class OurServer:
    """The processes; a context manager, which starts and ends them.

    :param gate: through which other servers reach it
    :param notaries: servers that it asks for the keys of others
    :ivar name: of the server
    :ivar http: port of the master's HTTP listener
    """

    def __init__(
        self,
        directory: Path,
        authority: Authority,
        gate: Gate | None = None,
        notaries: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        replication, self.http, worker_http, client, worker_client, port = free_ports(6)
        self.name = named(port, gate)
        self.url = f"http://{LOOPBACK}:{client}"
        options: list[object] = ["--replication-port", replication, "--http-port", self.http]
        options += ["--worker-http-port", worker_http, "--client-port", client]
        options += ["--worker-client-port", worker_client]
        synrepl("init", directory, "--server-name", self.name, "--rooms", *options)
        files = authority.certificate(["localhost"])
        common = {
            "trusted_ca_files": [str(authority.path)],
            "trust_system_authorities": False,
            "allow_private_addresses": ["127.0.0.0/8", "::1/128"],
            "trusted_key_servers": [{"server_name": each} for each in notaries],
        }
        listener = {
            "port": port,
            "tls_certificate_path": str(files.certificate),
            "tls_private_key_path": str(files.private_key),
        }
        self._adapt("master", {**common, **listener})
        self._adapt("worker", common)
        self._https = {"master": self.http, "worker": worker_http}
        self._users = yaml.safe_load((directory / "users.yaml").read_text())["users"]
        self._processes: dict[str, Process] = {}
        if gate is not None:
            gate.leads_to(port)

    def _adapt(self, name: str, federation: Mapping[str, Any]) -> None:
        path = self.directory / f"{name}.yaml"
        config = yaml.safe_load(path.read_text())
        config["rooms"]["client_api"]["rate_limits"] = {
            each: dict(_MUCH) for each in ("logins", "requests", "writes")
        }
        config["rooms"]["federation"] = dict(federation)
        path.write_text(yaml.safe_dump(config, sort_keys=False))

    def config(self, name: str = "master") -> Path:
        """The configuration of a process."""
        return self.directory / f"{name}.yaml"

    def start(self, name: str) -> None:
        """Start a process; returns when it is ready."""
        process = self._processes[name] = start(name, self.config(name), self.directory)
        ready(process, self._https[name])

    def end(self, name: str, *, kill: bool) -> None:
        """End a process, or kill it."""
        process = self._processes.pop(name)
        if kill:
            process.kill()
        else:
            process.stop()

    def client(self, name: str) -> Client:
        """A client of ``alice`` or ``bob``, at the master."""
        user_id = f"@{name}:{self.name}"
        return Client.log_in(self.url, user_id, self._users[user_id])

    def status(self) -> Mapping[str, Any]:
        """The master's ``/status``."""
        found: Mapping[str, Any] = request("GET", self.http, "/status").content
        return found

    def event(self, event_id: str) -> Mapping[str, Any] | None:
        """An event with what is known about it, or None if it is not there."""
        answer = request("GET", self.http, f"/rooms/events/{q(event_id)}")
        return answer.content if answer.status == 200 else None

    def state(self, room: str, at: str | None = None) -> Mapping[tuple[str, str], str]:
        """Event IDs of a state: the current one, or that after an event.

        :raises RoomUnreadable:
        """
        path = f"/rooms/{q(room)}/state" + ("" if at is None else f"?at={q(at)}")
        answer = request("GET", self.http, path)
        if answer.status != 200:
            raise RoomUnreadable(path=path, status=answer.status, reason=answer.content)
        return {(e["type"], e["state_key"]): e["event_id"] for e in answer.content["state"]}

    def resync(self, room: str) -> Mapping[str, Any]:
        """How far a partial room is, and what came of asking each server; empty if it never was one."""
        found = json.loads(synrepl("rooms", "resync", "-c", self.config(), room, "--json"))
        return dict(found["rooms"][0]) if found["rooms"] else {}

    def __enter__(self) -> Self:
        self.start("master")
        self.start("worker")
        return self

    def __exit__(self, *_: object) -> None:
        while self._processes:
            self._processes.popitem()[1].stop()
