"""The HTTP listener of a process: there from the first moment, useful once it has started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.error import CannotListenError

from synrepl.adapters.http_messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http_routes import Route
from synrepl.adapters.http_server import HttpLimits, HttpServer
from synrepl.core.errors import ConfigError, Unavailable
from synrepl.daemon.config import Http


class PortInUse(ConfigError):
    """{what}: port {port} on {address} cannot be listened on: {reason}; choose another port, or stop the program that has it"""


class StillStarting(Unavailable):
    """the process is starting: {reason}"""


def listen(reactor: Any, what: str, port: int, factory: Any, address: str) -> Any:
    """Listen on a TCP port.

    :param what: the key of the configuration that asked for it
    :raises PortInUse: it is taken, or the address is not ours
    """
    try:
        return reactor.listenTCP(port, factory, interface=address)
    except CannotListenError as error:
        raise PortInUse(what=what, port=port, address=address, reason=error.socketError) from None


class HttpListener:
    """One listener, from before the start of a process to after its end.

    :param config: None for a process without one; then nothing here does anything
    :ivar waiting: why the process has not started yet
    """

    def __init__(self, reactor: Any, clock: Any, config: Http | None) -> None:
        self._reactor = reactor
        self._config = config
        self._port: Any = None
        self.waiting = "just begun"
        self.server: HttpServer | None = None
        if config is not None:
            secret = None if config.secret is None else config.secret.reveal()
            limits = HttpLimits(max_body=config.max_body)
            self.server = HttpServer(clock, self._until_started(), secret, limits)

    def open(self) -> None:
        """Listen.

        :raises PortInUse: it is taken, or the address is not ours
        """
        if self._config is not None:
            where = self._config.bind_address
            self._port = listen(self._reactor, "http", self._config.port, self.server, where)

    @property
    def port(self) -> int | None:
        """The port that is listened on."""
        return None if self._port is None else int(self._port.getHost().port)

    def started(self, routes: Sequence[Route]) -> None:
        """The process has started: answer by these routes."""
        if self.server is not None:
            self.server.serve(routes)

    async def close(self) -> None:
        """Stop listening, and close what is open once it is answered."""
        if self._port is not None:
            await self._port.stopListening()
        if self.server is not None:
            self.server.close_connections()

    def _until_started(self) -> list[Route]:
        async def alive(request: HttpRequest) -> HttpAnswer:
            return json_answer({"alive": True})

        async def not_ready(request: HttpRequest) -> HttpAnswer:
            return json_answer({"ready": False, "reasons": [self.waiting]}, 503)

        async def refuse(request: HttpRequest) -> HttpAnswer:
            raise StillStarting(reason=self.waiting)

        updates = "/_synapse/replication/get_repl_stream_updates/<stream>"
        return [
            Route("GET", "/health", alive, public=True),
            Route("GET", "/ready", not_ready),
            Route("POST", "/streams/<stream>/facts", refuse, takes_body=True),
            Route("POST", "/caches/audit", refuse, takes_body=True),
            *(
                Route("GET", path, refuse)
                for path in (
                    "/",
                    "/status",
                    "/metrics",
                    "/caches",
                    "/streams/<stream>/wait",
                    updates,
                    f"{updates}/<request>",
                )
            ),
        ]
