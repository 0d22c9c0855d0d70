"""A listener for Matrix clients: its settings, access tokens of its users, and requests to it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from twisted.internet import reactor

from benchmarks.coroutines import result_of
from benchmarks.running_master import SERVER_NAME
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.daemon.config.signing_key import new_signing_key
from synrepl.services.clients.known_users import KnownUsers

V3 = "/_matrix/client/v3"

#: Above what any benchmark asks.
_UNLIMITED = {"per_second": 1_000_000, "burst": 1_000_000}


class ClientApiSite:
    """The users of a listener and its files.

    :param users: user IDs
    :ivar key_path: the file with the signing key
    """

    def __init__(self, directory: Path, users: list[str], server_name: str = SERVER_NAME) -> None:
        self._users = {user: f"password of {number}" for number, user in enumerate(users)}
        self._known = KnownUsers(
            TwistedScheduler(cast(Any, reactor)), server_name, lambda: self._users
        )
        self._users_path = _private(directory / "users.yaml", json.dumps({"users": self._users}))
        self.key_path = _private(directory / "signing.key", new_signing_key("1"))

    def settings(self, writers: list[str], port: int | None = None) -> dict[str, Any]:
        """The section ``rooms`` of a process.

        :param port: of its listener for clients; None: it has none
        """
        found: dict[str, Any] = {
            "writers": writers,
            "max_queued_bytes": "256MiB",
            "signing_key": self.key_path,
        }
        if port is not None:
            found["client_api"] = {
                "port": port,
                "users": self._users_path,
                "rate_limits": dict.fromkeys(("logins", "requests", "writes"), _UNLIMITED),
            }
        return found

    def token(self, user_id: str) -> str:
        """An access token of a user."""
        login = {
            "type": "m.login.password",
            "user": user_id,
            "password": self._users[user_id],
            "device_id": "D",
        }
        return result_of(self._known.login(login)).access_token


class ApiClient:
    """A client on a persistent connection.

    :param port: on 127.0.0.1
    """

    def __init__(self, port: int, access_token: str) -> None:
        self._port, self._token = port, access_token
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {"Authorization": f"Bearer {access_token}"}

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer to a request, which must have status 200."""
        try:
            answer = self._request(method, path, body)
        except OSError:  # a server closes connections that were idle for long
            self._connection.close()
            answer = self._request(method, path, body)
        raw = answer.read()
        if answer.status != 200:
            raise AssertionError(f"{method} {path}: {answer.status} {raw[:500]!r}")
        return json.loads(raw)

    def _request(self, method: str, path: str, body: object) -> http.client.HTTPResponse:
        data = None if body is None else json.dumps(body)
        self._connection.request(method, V3 + path, data, self._headers)
        return self._connection.getresponse()

    def say(self, room_id: str, text: str) -> str:
        """Send a message; its event ID."""
        path = f"/rooms/{quote(room_id)}/send/m.room.message/{quote(text)}{time.monotonic_ns()}"
        content: Mapping[str, str] = {"msgtype": "m.text", "body": text}
        return str(self.ask("PUT", path, content)["event_id"])

    def again(self) -> ApiClient:
        """The same client on another connection."""
        return ApiClient(self._port, self._token)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _private(path: Path, text: str) -> str:
    path.touch(mode=0o600)
    path.write_text(text)
    return str(path)
