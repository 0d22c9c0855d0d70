"""A client of a real server's client-server API."""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any
from urllib.parse import quote

from interop import http_request
from interop.processes import LOOPBACK
from interop.synapse import REGISTRATION_SECRET

API = "/_matrix/client/r0"


class Server:
    """The client-server API of a server.

    :param port: its port, or a function from path to port if the API is divided among processes
    :ivar answers: number of answers by (action, status)
    """

    def __init__(self, port: int | Callable[[str], int], name: str) -> None:
        self.name = name
        self._port = port
        self.answers: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()

    def call(
        self, action: str, method: str, path: str, body: object = None, token: str | None = None
    ) -> Any:
        """Make a request; the JSON of the answer, regardless of its status.

        :param action: description of the request, under which its answer is counted
        """
        port = self._port if isinstance(self._port, int) else self._port(path)
        answer = http_request.request(method, f"http://{LOOPBACK}:{port}{path}", body, token)
        with self._lock:
            self.answers[action, answer.status] += 1
        return answer.content


class User:
    """A registered user with one device."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        path = "/_synapse/admin/v1/register"
        if "nonce" not in server.call("ask how to register", "GET", path):
            path = f"{API}/admin/register"
        nonce = server.call("ask how to register", "GET", path)["nonce"]
        parts = (nonce, name, "password", "notadmin")
        digest = hmac.new(REGISTRATION_SECRET.encode(), "\0".join(parts).encode(), hashlib.sha1)
        body = {
            "nonce": nonce,
            "username": name,
            "password": "password",
            "admin": False,
            "mac": digest.hexdigest(),
        }
        registered = server.call("register", "POST", path, body)
        self.id: str = registered["user_id"]
        self.device: str = registered["device_id"]
        self.access_token: str = registered["access_token"]
        self._transactions = count(1)

    def moved(self, server: Server) -> None:
        """Go on with the same account on another server with its database."""
        self._server = server

    def call(self, action: str, method: str, path: str, body: object = None) -> Any:
        """Make a request to a path below the root of the client API."""
        return self._server.call(action, method, API + path, body, self.access_token)

    def put(self, action: str, path: str, body: object) -> Any:
        """Make a PUT request."""
        return self.call(action, "PUT", path, body)

    def post(self, action: str, path: str, body: object) -> Any:
        """Make a POST request."""
        return self.call(action, "POST", path, body)

    def send(self, room: str, content: object) -> str | None:
        """Send a message; its event ID, or None if it was refused."""
        path = f"/rooms/{q(room)}/send/m.room.message/{next(self._transactions)}"
        event: str | None = self.put("send a message", path, content).get("event_id")
        return event

    def send_to_device(self, user: str, content: object) -> None:
        """Send a to-device message to all devices of a user."""
        path = f"/sendToDevice/org.example.x/{next(self._transactions)}"
        self.put("send to devices", path, {"messages": {user: {"*": content}}})


def q(text: str) -> str:
    """Quote text as a segment of a path."""
    return quote(text, safe="")
