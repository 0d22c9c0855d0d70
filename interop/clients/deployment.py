"""A master and two workers that serve Matrix clients, as a user sets them up."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import yaml

from interop import http_request
from interop.processes import LOOPBACK, Process, free_ports
from interop.synrepl_processes import ready, start, synrepl
from synrepl.core.errors import Unavailable

SERVER = "clients.example"

_API = "/_matrix/client/v3"

#: No program is to be slowed down by limits for people.
_MUCH = {"per_second": 1_000, "burst": 100_000}


class ClientRefused(Unavailable):
    """{method} {path} was answered with {status}: {reason}"""


class ClientDeployment:
    """The processes; a context manager, which starts and ends them.

    The first user's client is to use ``worker1``, the second one's ``worker2``.

    :ivar users: user IDs with their passwords
    :ivar urls: base URLs of the workers for clients
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        replication, http, http1, http2, client, client1, client2 = free_ports(7)
        ports = {
            "--replication-port": replication,
            "--http-port": http,
            "--worker-http-port": http1,
            "--client-port": client,
            "--worker-client-port": client1,
        }
        options = [str(part) for option in ports.items() for part in option]
        synrepl("init", directory, "--server-name", SERVER, "--rooms", *options)
        self._http = {"master": http, "worker1": http1, "worker2": http2}
        for name in ("master", "worker"):
            self._adapt(directory / f"{name}.yaml", {})
        second = {"instance_name": "worker2", "http": {"port": http2}}
        self._adapt(directory / "worker.yaml", second, directory / "worker2.yaml", client2)
        users = yaml.safe_load((directory / "users.yaml").read_text())["users"]
        self.users: Mapping[str, str] = users
        self.urls: Sequence[str] = [f"http://{LOOPBACK}:{port}" for port in (client1, client2)]
        self._processes: dict[str, Process] = {}
        self._tokens: dict[int, str] = {}
        self._said = 0

    def _adapt(
        self, path: Path, more: Mapping[str, Any], to: Path | None = None, port: int | None = None
    ) -> None:
        config = yaml.safe_load(path.read_text())
        config["rooms"]["client_api"]["rate_limits"] = {
            each: dict(_MUCH) for each in ("logins", "requests", "writes")
        }
        if port is not None:
            config["rooms"]["client_api"]["port"] = port
        (to or path).write_text(yaml.safe_dump({**config, **more}, sort_keys=False))

    def __enter__(self) -> Self:
        for name in self._http:
            self._start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes.values()):
            process.stop()

    def _start(self, name: str) -> None:
        file = "worker.yaml" if name == "worker1" else f"{name}.yaml"
        role = re.sub(r"\d", "", name)
        self._processes[name] = start(role, self._directory / file, self._directory)
        ready(self._processes[name], self._http[name])

    def restart(self, name: str, *, kill: bool) -> None:
        """End a process, or kill it, and start it again; returns when it is ready."""
        process = self._processes[name]
        if kill:
            process.kill()
        else:
            process.stop()
        self._start(name)

    # -- requests of a user --------------------------------------------------------------

    def ask(self, place: int, method: str, path: str, body: object = None) -> Any:
        """Make a request of a user at the user's worker; the JSON of the answer.

        :param place: of the user in :attr:`users`
        :raises ClientRefused: :raises OSError: the worker does not answer
        """
        if place not in self._tokens:
            user = list(self.users)[place]
            login = {"type": "m.login.password", "user": user, "password": self.users[user]}
            self._tokens[place] = self._ask(place, "POST", "/login", login, None)["access_token"]
        return self._ask(place, method, path, body, self._tokens[place])

    def _ask(self, place: int, method: str, path: str, body: object, token: str | None) -> Any:
        url = f"{self.urls[place]}{_API}{path}"
        answer = http_request.request(method, url, body, token)
        if answer.status != 200:
            raise ClientRefused(
                method=method, path=path, status=answer.status, reason=answer.content
            )
        return answer.content

    def say(self, place: int, room_id: str, text: str) -> str:
        """Send a message of a user; its event ID."""
        self._said += 1
        path = f"/rooms/{quote(room_id)}/send/m.room.message/said{self._said}"
        content = {"msgtype": "m.text", "body": text}
        return str(self.ask(place, "PUT", path, content)["event_id"])

    def crowded_room(self, messages: int) -> tuple[str, list[str]]:
        """A room of both users with messages of the second; its ID, and theirs in order."""
        room_id: str = self.ask(
            0, "POST", "/createRoom", {"preset": "public_chat", "name": "Crowded"}
        )["room_id"]
        self.ask(1, "POST", f"/join/{quote(room_id)}", {})
        return room_id, [self.say(1, room_id, f"message {n}") for n in range(messages)]
