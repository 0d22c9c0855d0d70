"""Real masters of several servers, which reach one another over TLS on loopback, each with one user."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

import psycopg2

from benchmarks.client_api import ApiClient, ClientApiSite
from benchmarks.running_master import RunningMaster, free_ports
from tests.adapters.federation.authorities import Authority

#: The streams of a server with partial rooms.
_CATALOGUE = (
    *("events", "backfill", "caches"),
    *("un_partial_stated_room", "un_partial_stated_event"),
)

#: Seconds between two looks whether a room is complete.
_LOOK_S = 0.05


class FederatedSite:
    """The files of a server.

    :param directory: exists
    :param dsn: of its database
    :param notary: a server that is asked for the keys of others; None: there is none
    :ivar name: its server name
    :ivar user_id: its user
    """

    def __init__(
        self, directory: Path, dsn: str, authority: Authority, notary: str | None = None
    ) -> None:
        self.directory, self.dsn = directory, dsn
        port, client_port = free_ports(2)
        self.name = f"localhost:{port}"
        self.user_id, self._other_id = f"@alice:{self.name}", f"@bob:{self.name}"
        self.clients = ClientApiSite(directory, [self.user_id, self._other_id], self.name)
        self._client_port = client_port
        files = authority.certificate(["localhost"])
        rooms = self.clients.settings(["master"], client_port)
        rooms["federation"] = {
            "port": port,
            "tls_certificate_path": str(files.certificate),
            "tls_private_key_path": str(files.private_key),
            "trusted_ca_files": [str(authority.path)],
            "trust_system_authorities": False,
            "allow_private_addresses": ["127.0.0.0/8", "::1/128"],
        }
        if notary is not None:
            rooms["federation"]["trusted_key_servers"] = [{"server_name": notary}]
        self.settings = {
            "server_name": self.name,
            "catalogue": list(_CATALOGUE),
            "rooms": rooms,
        }

    def client(self) -> ApiClient:
        """A client of its user, on a connection of its own."""
        return ApiClient(self._client_port, self.clients.token(self.user_id))

    def other_client(self) -> ApiClient:
        """A client of another user, who joins nothing."""
        return ApiClient(self._client_port, self.clients.token(self._other_id))

    def start(self) -> RunningMaster:
        """Its master, not yet ready."""
        return RunningMaster(self.dsn, self.directory, self.settings)


class FirstMessage(NamedTuple):
    """What a user waited for: to be joined, and from then until the first message was sent, in seconds."""

    join: float
    message: float

    @property
    def total(self) -> float:
        """Seconds from the request to join until the first message was sent."""
        return self.join + self.message


class JoiningClient(Protocol):
    """A client of a server, whichever that is."""

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer to a request."""
        ...

    def say(self, room_id: str, text: str, /) -> str:
        """Send a message."""
        ...


def join_and_say(client: JoiningClient, room_id: str, via: str) -> FirstMessage:
    """Join a room as clients do, and say something in it."""
    began = time.perf_counter()
    # Releases differ in the name of the parameter.
    servers = f"via={quote(via)}&server_name={quote(via)}"
    client.ask("POST", f"/join/{quote(room_id)}?{servers}", {})
    joined = time.perf_counter()
    client.say(room_id, "first")
    return FirstMessage(joined - began, time.perf_counter() - joined)


def join_whole(
    master: RunningMaster, client: ApiClient, user_id: str, room_id: str, via: str
) -> FirstMessage:
    """Join a room with its whole state, and say something in it."""
    asked: dict[str, Any] = {"room": room_id, "user_id": user_id, "via": [via], "whole": True}
    began = time.perf_counter()
    while True:
        request = urllib.request.Request(
            f"{master.http}/joins", json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            found = json.load(answer)
        if found["joined"]:
            break
        asked["run"] = found["run"]
    joined = time.perf_counter()
    client.say(room_id, "first")
    return FirstMessage(joined - began, time.perf_counter() - joined)


def wait_until_complete(dsn: str, table: str = "synrepl._partial_rooms") -> None:
    """Wait until a server has no partial room.

    :param table: of its partial rooms
    """
    _wait_until_none(dsn, table)


def wait_until_released(dsn: str) -> None:
    """Wait until nobody else is connected to a database: leases last as long as their connections."""
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    _wait_until_none(dsn, f"pg_stat_activity WHERE {others}")


def _wait_until_none(dsn: str, rows: str) -> None:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        while True:
            cursor.execute(f"SELECT count(*) FROM {rows}")
            if cursor.fetchone() == (0,):
                break
            time.sleep(_LOOK_S)
    connection.close()


def new_database(dsn: str, name: str) -> str:
    """Make a database beside another one; its DSN."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}"')
    connection.close()
    return urlsplit(dsn)._replace(path=f"/{name}").geturl()
