"""A real Synapse in one process, with a listener for other servers."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psycopg2
import yaml

from interop import http_request
from interop.databases import Databases
from interop.environments import Environment
from interop.federation.client import API, API_BEFORE, Client, ClientRefused
from interop.federation.gate import Gate, named
from interop.matrix_client import Server, User, q
from interop.processes import LOOPBACK, Process, free_ports
from interop.releases import CURRENT, MUCH
from interop.synapse import ServerDirectory, http_listener
from tests.adapters.federation.authorities import Authority

#: How many requests for members are under way at the same time.
_AT_ONCE = 4


class SynapseServer:
    """The process; a context manager, which starts and ends it.

    :param gate: through which other servers reach it
    :param notaries: servers that it asks for the keys of others
    :ivar name: of the server
    :ivar release: which it is
    :ivar dsn: of its database
    """

    def __init__(
        self,
        environment: Environment,
        databases: Databases,
        directory: Path,
        authority: Authority,
        gate: Gate | None = None,
        notaries: Sequence[str] = (),
    ) -> None:
        self.client_port, self.port = free_ports(2)
        self.name = named(self.port, gate)
        self.release = environment.release
        self._api = API if environment.release is CURRENT else API_BEFORE
        self.url = f"http://{LOOPBACK}:{self.client_port}"
        database = databases.copy(environment.release, f"peer_{directory.name}")
        self.dsn = databases.owner(database)
        directory.mkdir(parents=True)
        files = authority.certificate(["localhost"])
        self._token = secrets.token_hex(16)
        self._service = directory / "members.yaml"
        self._directory = ServerDirectory(
            environment,
            directory,
            self.name,
            databases.arguments(database),
            {
                # This process sends itself, and pushes.
                "federation_sender_instances": None,
                "pusher_instances": None,
                "tls_certificate_path": str(files.certificate),
                "tls_private_key_path": str(files.private_key),
                "federation_custom_ca_list": [str(authority.path)],
                "ip_range_blacklist": [],
                "trusted_key_servers": [
                    {"server_name": each, "accept_keys_insecurely": True} for each in notaries
                ],
                "app_service_config_files": [str(self._service)],
                "rc_federation": {
                    "window_size": 1000,
                    "sleep_limit": 100_000,
                    "sleep_delay": 1,
                    "reject_limit": 100_000,
                    "concurrent": 50,
                },
                "rc_invites": {"per_room": MUCH, "per_user": MUCH, "per_issuer": MUCH},
            },
        )
        self._write_service()
        federation = http_listener(self.port, "federation")
        listeners = [http_listener(self.client_port, "client"), {**federation, "tls": True}]
        self._files = [
            self._directory.shared(),
            self._directory.write(
                "main.yaml",
                {
                    "listeners": listeners,
                    "pid_file": str(directory / "main.pid"),
                    "log_config": str(self._directory.log_config("main")),
                },
            ),
        ]
        self.log = self._directory.log("main")
        self.process: Process | None = None
        if gate is not None:
            gate.leads_to(self.port)

    def _write_service(self) -> None:
        """An application service that makes members, without a password for each."""
        registration = {
            "id": "members",
            "url": None,
            "as_token": self._token,
            "hs_token": secrets.token_hex(16),
            "sender_localpart": "members",
            "rate_limited": False,
            "namespaces": {
                "users": [{"exclusive": False, "regex": "@member.*"}],
                "rooms": [],
                "aliases": [],
            },
        }
        self._service.write_text(yaml.safe_dump(registration))

    def start(self) -> None:
        """Start it; returns when it listens."""
        self.process = self._directory.start("main", "synapse.app.homeserver", self._files)
        for port in (self.client_port, self.port):
            self.process.listens_on(port)

    def end(self, *, kill: bool = False) -> None:
        """End it, or kill it."""
        process, self.process = self.process, None
        if process is not None:
            _ = process.kill() if kill else process.stop()

    def register(self, name: str) -> Client:
        """A client of a new user."""
        user = User(Server(self.client_port, self.name), name)
        return Client(self.url, user.id, user.access_token, self._api)

    def has(self, statement: str, *params: object) -> bool:
        """Whether a statement finds anything in its database."""
        connection = psycopg2.connect(self.dsn)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(statement, params)
                return cursor.fetchone() is not None
        finally:
            connection.close()

    def member(self, number: int) -> str:
        """The user ID of a member that :meth:`add_members` adds."""
        return f"@member{number}:{self.name}"

    def add_members(self, room_id: str, numbers: Iterable[int]) -> None:
        """Have new users join a room.

        :raises ClientRefused:
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(lambda number: self._add_member(room_id, number), numbers):
                pass

    def _add_member(self, room_id: str, number: int) -> None:
        name = f"member{number}"
        body = {"type": "m.login.application_service", "username": name, "inhibit_login": True}
        with suppress(ClientRefused):  # the user is there already
            self._as_service("POST", "/register", body)
        user = q(self.member(number))
        self._as_service("POST", f"/join/{q(room_id)}?user_id={user}", {})

    def _as_service(self, method: str, path: str, body: object) -> Any:
        answer = http_request.request(method, f"{self.url}{self._api}{path}", body, self._token)
        if answer.status != 200:
            raise ClientRefused(
                method=method,
                path=path,
                user="the application service",
                status=answer.status,
                reason=answer.content,
            )
        return answer.content

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
