"""An HTTP client that sends arbitrary bytes over a real connection."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

#: Twisted's own types describe it as a module.
reactor: Any = _reactor


class ListeningServer:
    """A listening port of this machine for a given factory."""

    def __init__(self, factory: Factory[Any]) -> None:
        self._factory = factory
        self._port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.port: int = self._port.getHost().port
        self.url = f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Stop listening, and wait until the factory's connections are closed."""
        await self._port.stopListening()
        while getattr(self._factory, "connections", None):
            await turn()


async def turn() -> None:
    """Let the reactor run one turn."""
    passed: Deferred[None] = Deferred()
    reactor.callLater(0, passed.callback, None)
    await passed


class Reply(NamedTuple):
    """A parsed answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    reason: str = ""

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class RawHttpClient(Protocol):
    """One connection to an HTTP server."""

    def __init__(self) -> None:
        self.data = b""
        self.closed: Deferred[None] = Deferred()
        self._waiting: Deferred[None] | None = None

    def send(self, data: bytes) -> None:
        """Send bytes unchanged."""
        transport: Any = self.transport
        transport.write(data)

    def dataReceived(self, data: bytes) -> None:
        self.data += data
        self._wake()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.closed.callback(None)
        self._wake()

    async def reply(self) -> Reply:
        """Wait for the next answer."""
        while (found := self._take()) is None:
            assert not self.closed.called, f"closed after {self.data!r}"
            self._waiting = Deferred()
            await self._waiting
        return found

    async def close(self) -> None:
        """Close the connection, and wait until it is closed."""
        transport: Any = self.transport
        transport.loseConnection()
        if not self.closed.called:
            await self.closed

    def _take(self) -> Reply | None:
        head, end, rest = self.data.partition(b"\r\n\r\n")
        if not end:
            return None
        first, *lines = head.decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        headers = {name.lower(): value for name, value in pairs}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return None
        self.data = rest[length:]
        _, status, reason = first.split(" ", 2)
        return Reply(int(status), headers, rest[:length], reason)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)


async def connect(port: int) -> RawHttpClient:
    """Connect to a port of this machine."""
    client = RawHttpClient()
    await connectProtocol(TCP4ClientEndpoint(reactor, "127.0.0.1", port), client)
    return client


def request(
    method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> bytes:
    """Encode a request."""
    all_headers = {"Host": "localhost", **(headers or {})}
    if body:
        all_headers["Content-Length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", *(f"{n}: {v}" for n, v in all_headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body
