"""Servers that publish keys, in memory: their documents are real, and what goes wrong is up to a test."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from signedjson.key import encode_verify_key_base64, generate_signing_key, get_verify_key
from signedjson.types import SigningKey
from twisted.internet.defer import Deferred

from synrepl.federation.errors import DestinationAway
from synrepl.federation.published_keys import countersigned, parse_key_document
from synrepl.rooms import sign_json

DAY_MS = 86_400_000


class KeyServer:
    """A server with a key.

    :ivar old: its former keys, with the times at which they expired
    :ivar valid_until_ms: what it states of its keys
    :ivar is_away: it does not answer
    :ivar answer: what it answers instead of its document
    """

    def __init__(self, name: str, valid_until_ms: int, version: str = "a") -> None:
        self.name = name
        self.valid_until_ms = valid_until_ms
        self.key: SigningKey = generate_signing_key(version)
        self.old: dict[str, tuple[SigningKey, int]] = {}
        self.is_away = False
        self.answer: bytes | None = None

    @property
    def key_id(self) -> str:
        """The ID of its key."""
        return f"ed25519:{self.key.version}"

    def rotate(self, version: str, expired_ms: int) -> None:
        """Take a new key."""
        self.old[self.key_id] = (self.key, expired_ms)
        self.key = generate_signing_key(version)

    def document(self, **changes: Any) -> bytes:
        """Its keys, signed."""
        fields = {
            "server_name": self.name,
            "valid_until_ts": self.valid_until_ms,
            "verify_keys": {self.key_id: {"key": public(self.key)}},
            "old_verify_keys": {
                key_id: {"key": public(key), "expired_ts": expired}
                for key_id, (key, expired) in self.old.items()
            },
            **changes,
        }
        return json.dumps(sign_json(fields, self.name, self.key)).encode()


def public(key: SigningKey) -> str:
    """The public part of a key."""
    return str(encode_verify_key_base64(get_verify_key(key)))


class KeyServers:
    """Asks servers for keys; see ``AsksForKeys``.

    :ivar asked: the servers that were asked, in order
    :ivar queries: what notaries were asked for
    :ivar held: answers wait for this, if it is set
    """

    def __init__(self) -> None:
        self.servers: dict[str, KeyServer] = {}
        self.asked: list[str] = []
        self.queries: list[tuple[str, Mapping[str, Mapping[str, int]]]] = []
        self.ignored_back_off: list[bool] = []
        self.held: Deferred[None] | None = None

    def add(self, name: str, valid_until_ms: int) -> KeyServer:
        """A new server."""
        self.servers[name] = KeyServer(name, valid_until_ms)
        return self.servers[name]

    async def server_keys(self, destination: str, *, ignores_back_off: bool = False) -> bytes:
        """The document of a server."""
        self.asked.append(destination)
        self.ignored_back_off.append(ignores_back_off)
        if self.held is not None:
            await self.held
        server = self._server(destination)
        return server.document() if server.answer is None else server.answer

    async def query_keys(
        self, notary: str, wanted: Mapping[str, Mapping[str, int]]
    ) -> Sequence[bytes]:
        """The documents of servers that a notary knows, whether they are away or not."""
        self.queries.append((notary, wanted))
        asked = self._server(notary)
        found = []
        for name in wanted:
            if name in self.servers:
                server = self.servers[name]
                document = server.document() if server.answer is None else server.answer
                found.append(countersigned(parse_key_document(document), notary, asked.key))
        return found

    def _server(self, name: str) -> KeyServer:
        server = self.servers.get(name)
        if server is None or server.is_away:
            raise DestinationAway(destination=name, subject="GET keys", reason="away")
        return server
