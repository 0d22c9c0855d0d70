"""A listener for Matrix clients whose endpoints a test decides."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from synrepl.adapters.client_api.policy import MatrixPolicy
from synrepl.adapters.client_api.rate_limits import RateLimit, RateLimiter
from synrepl.adapters.client_api.write_positions import WritePositions
from synrepl.adapters.http.limits import HttpLimits
from synrepl.adapters.http.routes import Route
from synrepl.adapters.http.server import HttpServer
from synrepl.daemon.client_api.endpoints import ClientRateLimiters, Endpoints
from synrepl.daemon.client_api.errors import CLIENT_API_ERRORS
from synrepl.services.clients.identity import ClientIdentity, ClientLogin, LoginRefused
from tests.adapters.raw_http_client import ListeningServer, RawHttpClient, Reply, connect, request


class KnownTokens:
    """A checker whose access tokens are ``user/device``, of users that logged in by their own name."""

    def __init__(self) -> None:
        self.logged_out: list[ClientIdentity] = []

    def flows(self) -> Sequence[str]:
        return ["m.login.password"]

    async def login(self, credentials: Mapping[str, Any]) -> ClientLogin:
        if credentials.get("password") != "right":
            raise LoginRefused()
        identity = ClientIdentity("@a:test", "D1")
        return ClientLogin(identity, "@a:test/D1")

    async def identify(self, access_token: str) -> ClientIdentity | None:
        user_id, _, device_id = access_token.partition("/")
        return ClientIdentity(user_id, device_id) if device_id else None

    async def logout(self, identity: ClientIdentity, access_token: str) -> None:
        self.logged_out.append(identity)


class RecordedWaits:
    """Records the positions that are waited for."""

    def __init__(self) -> None:
        self.waited: list[WritePositions] = []

    async def wait_until_covered(self, positions: WritePositions) -> None:
        self.waited.append(positions)


class MatrixCase(TestCase):
    """A listener on loopback, under a clock of the test's."""

    timeout = 20
    limits = HttpLimits(max_body=1000)
    rates: RateLimit = RateLimit(100.0, 100)

    async def setUp(self) -> None:  # type: ignore[override]
        self.clock = Clock()
        clock = cast(Any, self.clock)
        self.checker, self.waits = KnownTokens(), RecordedWaits()
        limiters = ClientRateLimiters(*(RateLimiter(clock, self.rates) for _ in range(3)))
        self.endpoints = Endpoints(
            self.checker, limiters, self.waits, lambda request: request.remote_address
        )
        policy = MatrixPolicy(CLIENT_API_ERRORS)
        self.server = HttpServer(clock, self.routes(), policy, self.limits)
        self.listening = ListeningServer(self.server)
        self.client: RawHttpClient = await connect(self.listening.port)

    async def tearDown(self) -> None:  # type: ignore[override]
        await self.client.close()
        await self.listening.stop()

    def routes(self) -> Sequence[Route]:
        return []

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        token: str | None = "@a:test/D1",
        **headers: str,
    ) -> Reply:
        """Send a request; ``body`` is JSON, or bytes as they are."""
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        self.client.send(request(method, path, data, sent))
        reply = await self.client.reply()
        if reply.headers.get("connection") == "close":
            await self.client.close()
            self.client = await connect(self.listening.port)
        return reply

    def assert_error(self, reply: Reply, status: int, errcode: str) -> None:
        """The answer is this error, in the specification's form."""
        self.assertEqual((reply.status, reply.json["errcode"]), (status, errcode))
        self.assertIsInstance(reply.json["error"], str)
