"""A Matrix client of tests: JSON over HTTP."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple
from urllib.parse import quote

from twisted.internet.threads import deferToThread

V3 = "/_matrix/client/v3"


class ClientReply(NamedTuple):
    """An answer."""

    status: int
    json: Any
    headers: dict[str, str]

    @property
    def errcode(self) -> str | None:
        """The code of an error; None for a success."""
        found = self.json.get("errcode") if isinstance(self.json, dict) else None
        return found if self.status >= 400 else None


class HttpMatrixClient:
    """Sends requests of one user to a port of this machine."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port = port
        self.token = token
        self.user_id = ""

    async def log_in(self, user: str, password: str, **more: Any) -> ClientReply:
        """Log in by password."""
        identifier = {"type": "m.id.user", "user": user}
        body = {"type": "m.login.password", "identifier": identifier, "password": password, **more}
        reply = await self.ask("POST", "/login", body)
        if reply.status == 200:
            self.token, self.user_id = reply.json["access_token"], reply.json["user_id"]
        return reply

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> ClientReply:
        """Send a request; a path without ``/_matrix`` is one of the client API, version 3."""
        return await deferToThread(self.ask_now, method, path, body, **headers)

    def ask_now(self, method: str, path: str, body: Any = None, **headers: str) -> ClientReply:
        """The same, in the thread of the caller."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        target = path if path.startswith("/_matrix") else V3 + path
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            sent["Authorization"] = f"Bearer {self.token}"

        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, target, data, sent)
            answer = connection.getresponse()
            raw = answer.read()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return ClientReply(answer.status, json.loads(raw) if raw else None, found)
        finally:
            connection.close()

    async def create_room(self, **chosen: Any) -> str:
        """Create a room; returns its ID."""
        reply = await self.ask("POST", "/createRoom", chosen)
        assert reply.status == 200, reply
        return str(reply.json["room_id"])

    async def say(self, room_id: str, text: str, txn_id: str) -> ClientReply:
        """Send a message."""
        path = f"/rooms/{quote(room_id)}/send/m.room.message/{quote(txn_id, safe='')}"
        return await self.ask("PUT", path, {"msgtype": "m.text", "body": text})
