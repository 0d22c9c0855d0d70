"""Requests that other servers sign, from our own transport to our own listener over TLS."""

from __future__ import annotations

import json
from typing import Any, cast

from signedjson.key import generate_signing_key, get_verify_key
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from synrepl.adapters.client_api.errors import MatrixCode
from synrepl.adapters.client_api.rate_limits import RateLimit, RateLimiter
from synrepl.adapters.federation import signed_endpoints
from synrepl.adapters.federation.policy import FederationPolicy
from synrepl.adapters.federation.signed_endpoints import (
    MAX_AT_ONCE,
    FederationEndpoints,
    OriginLimits,
    SignedRequest,
)
from synrepl.adapters.http.limits import HttpLimits
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.adapters.http.server import HttpServer
from synrepl.adapters.worker_threads import WorkerThreads
from synrepl.core.errors import Refused
from synrepl.federation.requests import FederationRequest
from synrepl.federation.server_acl import ServerAcl
from synrepl.federation.x_matrix import sign_request
from synrepl.rooms import ServerKey
from tests.adapters.federation.transport_case import ORIGIN, TransportCase
from tests.adapters.raw_http_client import RawHttpClient, Reply, connect, reactor, request, turn

PATH = "/_matrix/federation/v1/x"


class NoRoom(Refused):
    """there is no such room"""


class OneKey:
    """Knows one key of one server.

    :ivar held: fetching waits for this, if it is set
    """

    def __init__(self, server: str, key: Any) -> None:
        self._key = {server: {f"ed25519:{key.version}": ServerKey(get_verify_key(key))}}
        self.held: Deferred[None] | None = None
        self.memory = False

    def remembered(self, server: str, key_id: str) -> ServerKey | None:
        return self._key.get(server, {}).get(key_id) if self.memory else None

    async def for_request(self, server: str, key_id: str) -> ServerKey | None:
        if self.held is not None:
            await self.held
        return self._key.get(server, {}).get(key_id)


class EndpointsCase(TransportCase):
    """A listener with an endpoint that takes anything."""

    rate = RateLimit(1000.0, 1000)
    failure_rate = RateLimit(1000.0, 1000)
    concurrent = 100
    acl: ServerAcl | None = None

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.received: list[SignedRequest] = []
        self.heard: list[str] = []
        self.held: Deferred[None] | None = None
        self.keys = OneKey(ORIGIN, self.key)
        self.threads = WorkerThreads(reactor, "bodies", 1)
        self.addCleanup(self.threads.stop)
        clock = cast(Any, self.clock)
        self.limits = OriginLimits(
            RateLimiter(clock, self.rate), RateLimiter(clock, self.failure_rate), self.concurrent
        )
        # The name has the port, which is known only afterwards.
        self.server = HttpServer(
            cast(Any, Clock()), [], FederationPolicy("?", {}), HttpLimits(max_body=1_000_000)
        )
        self.name = f"localhost:{self.serve(self.server)}"
        self.server.policy = FederationPolicy(self.name, {NoRoom: MatrixCode(404, "M_NOT_FOUND")})
        self.endpoints = FederationEndpoints(
            self.scheduler,
            self.name,
            self.keys,
            self.limits,
            self.threads,
            self.hear,
            lambda request: request.remote_address,
            self.acl,
        )
        self.server.serve(self.routes())
        plain = reactor.listenTCP(0, self.server, interface="127.0.0.1")
        self.addCleanup(plain.stopListening)
        self.raw: RawHttpClient = await connect(plain.getHost().port)
        self.addCleanup(self.raw.close)

    def routes(self) -> list[Route]:
        return [
            self.endpoints.get(f"{PATH}/<id>", self.take, repeatable=["v"]),
            self.endpoints.put(f"{PATH}/<id>", self.take),
            self.endpoints.post(PATH, self.take),
            self.endpoints.public("GET", "/open", self.open),
        ]

    async def take(self, request: SignedRequest) -> HttpAnswer:
        self.received.append(request)
        if self.held is not None:
            await self.held
        if request.path.get("id") == "none":
            raise NoRoom()
        return json_answer({"taken": request.origin})

    async def open(self, request: HttpRequest) -> HttpAnswer:
        return json_answer({"open": True})

    async def hear(self, server: str) -> None:
        self.heard.append(server)

    def starting(
        self, method: str, path: str, content: bytes | None = None, **more: Any
    ) -> Deferred[Any]:
        """Send a signed request."""
        asked = FederationRequest(method, self.name, path, content=content, **more)
        return Deferred.fromCoroutine(self.transport.send(asked))

    async def ask(
        self, method: str, path: str, content: bytes | None = None, **more: Any
    ) -> tuple[int, Any]:
        """Send a signed request; status and body of the answer."""
        answer = await self.passing(self.starting(method, path, content, **more))
        body = json.loads(answer.body.read())
        answer.body.close()
        return answer.status, body

    async def send_raw(self, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        """Send a request as it is, over plain HTTP."""
        self.raw.send(request(method, path, body, headers))
        waiting = Deferred.fromCoroutine(self.raw.reply())
        return await self.passing(waiting)

    def signed(self, method: str, path: str, content: bytes | None = None, **changes: Any) -> str:
        """The header of a signed request."""
        values = {"key": self.key, "origin": ORIGIN, "destination": self.name} | changes
        return sign_request(
            values["key"], method, path, values["origin"], values["destination"], content
        )

    def assert_error(self, reply: Reply, status: int, errcode: str) -> None:
        self.assertEqual((reply.status, set(reply.json)), (status, {"errcode", "error"}))
        self.assertEqual(reply.json["errcode"], errcode)


class SignedRequests(EndpointsCase):
    async def test_are_taken(self) -> None:
        status, body = await self.ask("GET", f"{PATH}/a%2Fb", query=[("v", "1"), ("v", "2")])
        self.assertEqual((status, body), (200, {"taken": ORIGIN}))
        (taken,) = self.received
        self.assertEqual((taken.path, taken.query), ({"id": "a/b"}, {"v": "1"}))
        self.assertEqual((taken.values("v"), taken.content, taken.body), (["1", "2"], None, b""))
        self.assertEqual(self.heard, [ORIGIN])

    async def test_with_a_body_are_taken_however_it_is_written(self) -> None:
        for method, path in (("PUT", f"{PATH}/a"), ("POST", PATH)):
            for body in (b'{"a":{"b":"\xc3\xa9"}}', b' { "a" : {"b":"\\u00e9"} }\n'):
                canonical = b'{"a":{"b":"\xc3\xa9"}}'
                header = self.signed(method, path, canonical)
                reply = await self.send_raw(method, path, body, Authorization=header)
                self.assertEqual(reply.status, 200, reply)
                self.assertEqual(self.received[-1].json(), {"a": {"b": "é"}})
                self.assertEqual(self.received[-1].body, body)

    async def test_with_a_large_body_are_taken(self) -> None:
        content = b'{"a":"%b"}' % (b"x" * (2 * MAX_AT_ONCE))
        self.assertEqual(await self.ask("POST", PATH, content), (200, {"taken": ORIGIN}))
        header = self.signed("POST", PATH, content)
        reply = await self.send_raw("POST", PATH, content[:-2] + b'y"}', Authorization=header)
        self.assert_error(reply, 401, "M_UNAUTHORIZED")

    async def test_without_a_destination_are_taken(self) -> None:
        header = self.signed("GET", f"{PATH}/a").replace(f'destination="{self.name}",', "")
        reply = await self.send_raw("GET", f"{PATH}/a", Authorization=header)
        self.assertEqual(reply.status, 200)

    async def test_have_errors_of_the_specification(self) -> None:
        status, body = await self.ask("GET", f"{PATH}/none")
        self.assertEqual((status, body["errcode"]), (404, "M_NOT_FOUND"))
        self.assertEqual(body["error"], "there is no such room")


class OtherRequests(EndpointsCase):
    async def refused(
        self, reply: Reply, status: int = 401, errcode: str = "M_UNAUTHORIZED"
    ) -> None:
        self.assert_error(reply, status, errcode)
        self.assertEqual((self.received, self.heard), ([], []))
        await self.raw.close()
        self.raw = await connect(self.raw_port())

    def raw_port(self) -> int:
        transport: Any = self.raw.transport
        return int(transport.getPeer().port)

    async def test_without_a_signature_are_refused_before_their_body(self) -> None:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n".encode()
        self.raw.send(head)
        await self.refused(await self.passing(Deferred.fromCoroutine(self.raw.reply())))

    async def test_for_another_server_are_refused_before_their_body(self) -> None:
        header = self.signed("POST", PATH, destination="other.example")
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: {header}\r\nContent-Length: 1000\r\n\r\n"
        self.raw.send(head.encode())
        reply = await self.passing(Deferred.fromCoroutine(self.raw.reply()))
        self.assertIn("other.example", reply.json["error"])
        await self.refused(reply)

    async def test_with_two_signatures_are_refused(self) -> None:
        header = self.signed("GET", f"{PATH}/a")
        head = f"GET {PATH}/a HTTP/1.1\r\nHost: x\r\n" + f"Authorization: {header}\r\n" * 2 + "\r\n"
        self.raw.send(head.encode())
        await self.refused(await self.passing(Deferred.fromCoroutine(self.raw.reply())))

    async def test_that_are_not_what_was_signed_are_refused(self) -> None:
        path, body = f"{PATH}/a", b'{"a":1}'
        other = generate_signing_key("a_1")
        for header in (
            self.signed("POST", path, body),
            self.signed("PUT", f"{PATH}/b", body),
            self.signed("PUT", f"{path}?x=y", body),
            self.signed("PUT", path, b'{"a":2}'),
            self.signed("PUT", path),
            self.signed("PUT", path, body, key=other),
            self.signed("PUT", path, body, key=generate_signing_key("unknown")),
            self.signed("PUT", path, body, origin="stranger.example"),
        ):
            await self.refused(await self.send_raw("PUT", path, body, Authorization=header))
        self.assertEqual(self.endpoints.unverified, 8)

    async def test_with_a_body_that_is_no_object_are_refused(self) -> None:
        header = self.signed("POST", PATH, b"{}")
        for body in (b"[]", b"{", b"null", b"\xff", b'{"a":' * 10_000, b"[" * 500_000):
            reply = await self.send_raw("POST", PATH, body, Authorization=header)
            await self.refused(reply, 400, "M_BAD_JSON")

    async def test_with_a_body_that_is_too_large_are_refused(self) -> None:
        header = self.signed("POST", PATH, b"{}")
        reply = await self.send_raw("POST", PATH, b" " * 1_000_001, Authorization=header)
        await self.refused(reply, 413, "M_TOO_LARGE")

    async def test_for_what_there_is_not_are_refused(self) -> None:
        await self.refused(await self.send_raw("GET", "/_matrix/x"), 404, "M_UNRECOGNIZED")
        await self.refused(await self.send_raw("DELETE", PATH), 405, "M_UNRECOGNIZED")

    async def test_that_need_no_signature_are_taken(self) -> None:
        self.assertEqual((await self.send_raw("GET", "/open")).json, {"open": True})

    async def test_with_half_a_surrogate_pair_are_refused(self) -> None:
        header = self.signed("POST", PATH, b"{}")
        reply = await self.send_raw("POST", PATH, b'{"a":"\\ud800"}', Authorization=header)
        await self.refused(reply, 400, "M_BAD_JSON")


class Acl(EndpointsCase):
    acl = ServerAcl({"allow": ["*"], "deny": [ORIGIN]})

    async def test_servers_that_are_not_allowed_are_refused(self) -> None:
        status, body = await self.ask("GET", f"{PATH}/a")
        self.assertEqual((status, body["errcode"]), (403, "M_FORBIDDEN"))
        self.assertEqual(self.received, [])


class ManyRequests(EndpointsCase):
    rate = RateLimit(1.0, 3)
    failure_rate = RateLimit(1.0, 3)
    concurrent = 2

    async def test_of_a_server_are_limited_in_their_rate(self) -> None:
        statuses = [(await self.ask("GET", f"{PATH}/a"))[0] for _ in range(4)]
        self.assertEqual(statuses, [200, 200, 200, 429])
        _status, body = await self.ask("GET", f"{PATH}/a")
        self.assertEqual(body["errcode"], "M_LIMIT_EXCEEDED")
        self.assertGreater(body["retry_after_ms"], 0)

    async def test_at_the_same_time_are_limited_too(self) -> None:
        self.held = Deferred()
        held = [self.starting("GET", f"{PATH}/a") for _ in range(2)]
        while len(self.received) < 2:
            await turn()
        status, body = await self.ask("GET", f"{PATH}/a")
        self.assertEqual((status, body["errcode"]), (429, "M_LIMIT_EXCEEDED"))
        self.held.callback(None)
        for each in held:
            (await self.passing(each)).body.close()
        self.clock.advance(10)
        self.held = None
        self.assertEqual((await self.ask("GET", f"{PATH}/a"))[0], 200)

    async def test_that_are_signed_wrongly_are_limited_by_address(self) -> None:
        wrong = self.signed("GET", f"{PATH}/b")
        statuses = [
            (await self.send_raw("GET", f"{PATH}/a", Authorization=wrong)).status for _ in range(5)
        ]
        self.assertEqual(statuses, [401, 401, 401, 429, 429])
        # And nothing is done for them any more.
        self.assertEqual(self.endpoints.unverified, 3)

    async def test_without_a_signature_are_limited_by_address(self) -> None:
        statuses = [(await self.send_raw("GET", "/open")).status for _ in range(4)]
        self.assertEqual(statuses, [200, 200, 200, 429])


class UnknownKeys(EndpointsCase):
    async def test_do_not_keep_those_of_known_servers_from_being_answered(self) -> None:
        self.patch(signed_endpoints, "MAX_WAITING_FOR_KEYS", 2)
        self.keys.held = Deferred()
        waiting = [self.starting("GET", f"{PATH}/a") for _ in range(2)]
        for _ in range(200):
            await turn()
        status, _ = await self.ask("GET", f"{PATH}/a")
        self.assertEqual(status, 503)
        self.keys.memory = True
        self.assertEqual((await self.ask("GET", f"{PATH}/a"))[0], 200)
        self.keys.held.callback(None)
        for each in waiting:
            (await self.passing(each)).body.close()
