"""The HTTP listener: routes, refusals and limits, over real connections."""

# mypy: disable-error-code="no-untyped-call"
# (trial's assertions have no types)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from synrepl.adapters.http.limits import HttpLimits
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.policy import AdminPolicy
from synrepl.adapters.http.routes import Route
from synrepl.adapters.http.server import HttpServer
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.connection_table import ConnectionLimits
from synrepl.core.errors import InputError, Refused, SynreplError, Unavailable
from synrepl.core.slices import Slices
from synrepl.storage.database import CommitUnknown
from synrepl.storage.store import BadValue, DatabaseAway, KeyReused, Trimmed
from synrepl.streams.catalogue import UnknownStream
from tests.adapters.raw_http_client import (
    ListeningServer,
    RawHttpClient,
    Reply,
    connect,
    request,
    turn,
)

#: Bytes of an answer that no socket takes at once.
LARGE = 8 * 2**20


class HttpServerCase(TestCase):
    """A listener on loopback, under a clock of the test's."""

    timeout = 20
    limits = HttpLimits(
        max_body=1000, max_requests=3, max_buffered=2500, max_queued=2, head_s=30.0, body_s=30.0
    )
    secret: str | None = None
    hosts: Sequence[str] = ()

    def setUp(self) -> None:
        self.clock = Clock()
        self.raised: Exception = AssertionError("no error was set")
        self.held: list[Deferred[None]] = []
        self.statuses: dict[type[SynreplError], int] = {UnknownStream: 400}
        self.clients: list[RawHttpClient] = []
        self.listen(self.limits)

    def listen(self, limits: HttpLimits) -> None:
        """Open the listener."""
        clock: Any = self.clock
        self.server = HttpServer(clock, self.routes(), AdminPolicy(self.secret, self.hosts), limits)
        self.listening = ListeningServer(self.server)

    async def listen_again(self, limits: HttpLimits) -> None:
        """Replace the listener by one with other limits."""
        await self.listening.stop()
        self.listen(limits)

    async def tearDown(self) -> None:  # type: ignore[override]
        for client in self.clients:
            await client.close()
        await self.listening.stop()
        self.assertEqual((self.server.admission.active, self.server.admission.buffered), (0, 0))

    def routes(self) -> Sequence[Route]:
        return [
            Route("GET", "/public", self.echo, public=True),
            Route("GET", "/echo/<word>", self.echo),
            Route("POST", "/echo/<word>", self.echo, takes_body=True),
            Route("GET", "/fail", self.fail_),
            Route("GET", "/fail400", self.fail_, statuses=self.statuses),
            Route("GET", "/hold", self.hold),
            Route("GET", "/now", self.echo, public=True, immediate=True),
            Route("GET", "/large", self.large),
            Route("GET", "/unqueued", self.echo, unqueued=True),
        ]

    async def echo(self, request: HttpRequest) -> HttpAnswer:
        return json_answer(
            {
                "path": dict(request.path),
                "query": dict(request.query),
                "body": request.body.decode(),
                "x": request.header("X-Word"),
            }
        )

    async def fail_(self, request: HttpRequest) -> HttpAnswer:
        raise self.raised

    async def large(self, request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(200, b"x" * LARGE)

    async def hold(self, request: HttpRequest) -> HttpAnswer:
        waiting: Deferred[None] = Deferred()
        self.held.append(waiting)
        await waiting
        return json_answer({})

    async def client(self) -> RawHttpClient:
        client = await connect(self.listening.port)
        self.clients.append(client)
        return client

    async def ask(self, data: bytes) -> Reply:
        client = await self.client()
        client.send(data)
        return await client.reply()

    async def until_held(self, count: int) -> None:
        while len(self.held) < count:
            await turn()


class RequestRouting(HttpServerCase):
    """What reaches a handler, and what does not."""

    async def test_a_request_reaches_its_handler(self) -> None:
        reply = await self.ask(
            request("POST", "/echo/w%20x%2Fy?a=1&b=%C3%A9", b"hello", {"X-Word": "z"})
        )
        self.assertEqual(reply.status, 200)
        self.assertEqual(
            reply.json,
            {"path": {"word": "w x/y"}, "query": {"a": "1", "b": "é"}, "body": "hello", "x": "z"},
        )
        self.assertEqual(reply.headers["content-type"], "application/json")
        self.assertEqual(reply.headers["cache-control"], "no-store")

    async def test_accepts_a_chunked_body(self) -> None:
        head = request("POST", "/echo/w", headers={"Transfer-Encoding": "chunked"})
        reply = await self.ask(head + b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n")
        self.assertEqual(reply.json["body"], "hello")

    async def test_serves_many_requests_on_one_connection(self) -> None:
        client = await self.client()
        client.send(
            request("GET", "/echo/1") + request("POST", "/echo/2", b"x") + request("GET", "/public")
        )
        self.assertEqual([(await client.reply()).status for _ in range(3)], [200, 200, 200])
        self.assertEqual(self.server.responses, {("/echo/<word>", 200): 2, ("/public", 200): 1})

    async def test_an_unknown_path_is_not_found(self) -> None:
        for path in (
            "/",
            "/nope",
            "/echo",
            "/echo/",
            "/echo/a/b",
            "//echo/a",
            "/echo/%ff",
            "*",
        ):
            reply = await self.ask(request("GET", path))
            if path == "/echo/":
                self.assertEqual(reply.json["path"], {"word": ""})
            else:
                self.assertEqual((reply.status, reply.json["error"]), (404, "NoSuchPath"), path)

    async def test_other_methods_are_refused_and_head_has_no_body(self) -> None:
        reply = await self.ask(request("DELETE", "/echo/w"))
        self.assertEqual((reply.status, reply.headers["allow"]), (405, "GET, POST"))
        client = await self.client()
        client.send(request("HEAD", "/echo/w"))
        while b"\r\n\r\n" not in client.data:
            await turn()
        self.assertIn(b" 200 ", client.data.partition(b"\r\n")[0])
        self.assertTrue(client.data.endswith(b"\r\n\r\n"), "HEAD has no body")

    async def test_refuses_malformed_queries_and_headers(self) -> None:
        for path in (
            "/echo/w?a=1&a=2",
            "/echo/w?a=%ff",
            "/echo/w?" + "&".join(f"x{n}=" for n in range(60)),
        ):
            reply = await self.ask(request("GET", path))
            self.assertEqual((reply.status, reply.json["error"]), (400, "BadQuery"), path)
        for value in ("1\r\nX-Word: 2", "é"):
            reply = await self.ask(request("GET", "/echo/w", headers={"X-Word": value}))
            self.assertEqual((reply.status, reply.json["error"]), (400, "BadHeader"))

    async def test_refuses_input_that_is_not_http(self) -> None:
        for data in (
            b"\x00\x01\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET / HTTP/1.1\r\nX Y: 1\r\n\r\n",
            request("GET", "/é"),
        ):
            client = await self.client()
            client.send(data)
            await client.closed
            self.assertIn(b" 400 ", client.data)

    async def test_a_page_of_another_site_may_not_post(self) -> None:
        for origin, status in (
            ("http://localhost", 200),
            ("http://localhost:81", 403),
            ("https://evil.example", 403),
            ("null", 403),
        ):
            reply = await self.ask(request("POST", "/echo/w", b"x", {"Origin": origin}))
            self.assertEqual(reply.status, status, origin)


class ErrorAnswers(HttpServerCase):
    """Errors become statuses."""

    async def test_each_error_family_has_its_status(self) -> None:
        errors: list[tuple[SynreplError, int]] = [
            (InputError(), 400),
            (Refused(), 409),
            (Unavailable(), 503),
            (UnknownStream(name="x", hint=""), 404),
            (KeyReused(key="k"), 422),
            (Trimmed(stream="s", trimmed=5, after=3), 410),
            (BadValue(where="t.c", reason="too long"), 400),
            (DatabaseAway(where="h", reason="r"), 503),
            (CommitUnknown(where="h", name="n", xid="1", reason="r"), 500),
        ]
        for error, status in errors:
            self.raised = error
            reply = await self.ask(request("GET", "/fail"))
            self.assertEqual(reply.status, status, repr(error))
            self.assertEqual(reply.json["error"], type(error).__name__)
            self.assertEqual(reply.json["message"], str(error))
            self.assertEqual("retry-after" in reply.headers, status == 503)
            self.assertEqual(reply.json.get("trimmed"), 5 if status == 410 else None)

    async def test_every_status_has_its_reason_phrase(self) -> None:
        for status in HTTPStatus:
            if status < 400:
                continue
            self.raised = Refused()
            self.statuses[Refused] = status
            reply = await self.ask(request("GET", "/fail400"))
            self.assertEqual((reply.status, reply.reason), (status, status.phrase))

    async def test_a_route_may_override_statuses(self) -> None:
        self.raised = UnknownStream(name="x", hint="")
        self.assertEqual((await self.ask(request("GET", "/fail400"))).status, 400)
        self.raised = Refused()
        self.assertEqual((await self.ask(request("GET", "/fail400"))).status, 409)

    async def test_unexpected_errors_are_logged_and_not_sent(self) -> None:
        self.raised = RuntimeError("the password is x")
        reply = await self.ask(request("GET", "/fail"))
        self.assertEqual((reply.status, reply.json["error"]), (500, "InternalError"))
        self.assertNotIn(b"password", reply.body)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    async def test_escapes_a_message_that_utf8_cannot_encode(self) -> None:
        class Odd(InputError):
            """{path}"""

        self.raised = Odd(path="$.\ud800")
        reply = await self.ask(request("GET", "/fail"))
        self.assertEqual((reply.status, reply.json["path"]), (400, "$.\\ud800"))


class ServerLimits(HttpServerCase):
    """Nothing without bounds."""

    async def test_refuses_a_body_announced_as_too_long_before_it_arrives(self) -> None:
        client = await self.client()
        client.send(
            request("POST", "/echo/w", headers={"Content-Length": "1001", "Expect": "100-continue"})
        )
        reply = await client.reply()
        self.assertEqual((reply.status, reply.json["error"]), (413, "BodyTooLarge"))
        self.assertEqual(reply.headers["connection"], "close")
        self.assertEqual(client.data, b"", "it got a 100 Continue")
        client.send(b"x" * 1001)
        await client.closed

    async def test_accepts_a_body_of_exactly_the_limit(self) -> None:
        reply = await self.ask(request("POST", "/echo/w", b"x" * 1000))
        self.assertEqual(len(reply.json["body"]), 1000)

    async def test_refuses_a_body_that_grows_too_long(self) -> None:
        client = await self.client()
        client.send(request("POST", "/echo/w", headers={"Transfer-Encoding": "chunked"}))
        for _ in range(11):
            client.send(b"64\r\n" + b"x" * 100 + b"\r\n")
        self.assertEqual((await client.reply()).status, 413)
        self.assertEqual(self.server.admission.buffered, 0)
        client.send(b"0\r\n\r\n")
        await client.closed

    async def test_refuses_a_body_for_a_route_without_one(self) -> None:
        reply = await self.ask(request("GET", "/echo/w", b"x"))
        self.assertEqual(reply.status, 413)

    async def test_refuses_headers_that_are_too_long(self) -> None:
        for data in (
            b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
            request("GET", "/public", headers={f"X-{n}": "x" * 100 for n in range(200)}),
        ):
            client = await self.client()
            client.send(data)
            await client.closed
            self.assertNotIn(b" 200 ", client.data)

    async def test_bounds_the_bodies_of_all_requests_together(self) -> None:
        clients = [await self.client() for _ in range(3)]
        for client in clients[:2]:
            client.send(request("POST", "/echo/w", b"x" * 1000)[:-1])
        while self.server.admission.buffered < 1998:
            await turn()
        clients[2].send(request("POST", "/echo/w", b"x" * 900)[:-1])
        reply = await clients[2].reply()
        self.assertEqual((reply.status, reply.json["error"]), (503, "TooBusy"))
        for client in clients[:2]:
            client.send(b"x")
            self.assertEqual((await client.reply()).status, 200)

    async def test_bounds_concurrent_requests(self) -> None:
        """Three are answered, two are queued, the next one is refused with Retry-After."""
        for _ in range(3):
            (await self.client()).send(request("GET", "/hold"))
        await self.until_held(3)
        waiting = [await self.client() for _ in range(2)]
        for client in waiting:
            client.send(request("POST", "/echo/w", b"x"))
        while self.server.admission.queued < 2:
            await turn()
        reply = await self.ask(request("GET", "/public"))
        self.assertEqual((reply.status, reply.headers["retry-after"]), (503, "1"))
        for path in ("/now", "/unqueued"):
            self.assertEqual((await self.ask(request("GET", path))).status, 200)
        for held in self.held:
            held.callback(None)
        self.assertEqual([(await client.reply()).status for client in self.clients[:3]], [200] * 3)
        self.assertEqual([(await client.reply()).status for client in waiting], [200] * 2)
        self.assertEqual((await self.ask(request("GET", "/public"))).status, 200)

    async def test_queued_requests_are_answered_in_order_or_time_out(self) -> None:
        for _ in range(3):
            (await self.client()).send(request("GET", "/hold"))
        await self.until_held(3)
        first, second = await self.client(), await self.client()
        first.send(request("GET", "/hold"))
        while self.server.admission.queued < 1:
            await turn()
        second.send(request("GET", "/public"))
        while self.server.admission.queued < 2:
            await turn()
        self.held[0].callback(None)
        await self.until_held(4)
        self.assertEqual(self.server.admission.queued, 1, "the first one's turn has come")
        self.clock.advance(31)
        reply = await second.reply()
        self.assertEqual((reply.status, reply.json["error"]), (503, "TooBusy"))
        for held in self.held[1:]:
            held.callback(None)
        self.assertEqual((await first.reply()).status, 200)

    async def test_a_client_that_disconnects_leaves_the_queue(self) -> None:
        for _ in range(3):
            (await self.client()).send(request("GET", "/hold"))
        await self.until_held(3)
        client = await self.client()
        client.send(request("POST", "/echo/w", b"x" * 500))
        while self.server.admission.queued < 1:
            await turn()
        await client.close()
        while self.server.admission.queued:
            await turn()
        self.assertEqual(self.server.admission.buffered, 0)
        for held in self.held:
            held.callback(None)
        self.assertEqual([(await client.reply()).status for client in self.clients[:3]], [200] * 3)
        self.assertEqual(self.server.responses, {("/hold", 200): 3})

    async def test_incomplete_requests_take_no_slot(self) -> None:
        for _ in range(20):
            (await self.client()).send(request("POST", "/echo/w", b"x" * 10)[:-1])
        while self.server.admission.buffered < 20 * 9:
            await turn()
        self.assertEqual((await self.ask(request("POST", "/echo/w", b"x"))).status, 200)

    async def test_a_handler_runs_on_when_its_client_disconnects(self) -> None:
        client = await self.client()
        client.send(request("GET", "/hold"))
        await self.until_held(1)
        await client.close()
        while self.server.connections:
            await turn()
        self.assertEqual(self.server.admission.active, 1, "the handler still runs")
        self.held[0].callback(None)
        self.assertEqual(self.server.admission.active, 0)

    async def test_a_client_that_disconnects_amid_its_body_frees_the_bytes(self) -> None:
        client = await self.client()
        client.send(request("POST", "/echo/w", b"x" * 100)[:-1])
        while self.server.admission.buffered < 99:
            await turn()
        await client.close()
        while self.server.admission.active:
            await turn()

    async def test_slow_bytes_do_not_extend_the_deadline(self) -> None:
        client = await self.client()
        for byte in request("GET", "/public")[:10]:
            client.send(bytes([byte]))
            for _ in range(5):
                await turn()
            self.clock.advance(4)
        await client.closed
        self.assertIn(b" 408 ", client.data.partition(b"\r\n")[0])
        self.assertIn(b'"RequestTooSlow"', client.data)

    async def test_an_idle_connection_is_closed(self) -> None:
        client = await self.client()
        while not self.server.connections:
            await turn()
        self.clock.advance(31)
        await client.closed
        self.assertEqual(client.data, b"")

    async def test_the_first_byte_of_a_request_starts_its_deadline(self) -> None:
        client = await self.client()
        client.send(request("GET", "/public"))
        await client.reply()
        self.clock.advance(29)
        head, body = request("POST", "/echo/w", b"x" * 10), b"x"
        client.send(head[:-1])
        while self.server.admission.buffered < 9:
            await turn()
        self.clock.advance(29)
        client.send(body)
        self.assertEqual((await client.reply()).status, 200)
        self.clock.advance(31)
        await client.closed

    async def test_a_body_may_take_long_while_it_arrives_fast_enough(self) -> None:
        await self.listen_again(replace(self.limits, body_s=10.0, body_rate=10.0))
        fast, slow = await self.client(), await self.client()
        for client in (fast, slow):
            client.send(request("POST", "/echo/w", b"x" * 1000)[:-900])
        while self.server.admission.buffered < 200:
            await turn()
        self.clock.advance(19)
        fast.send(b"x" * 800)
        while self.server.admission.buffered < 1000:
            await turn()
        self.clock.advance(2)  # 100 bytes buy ten seconds
        reply = await slow.reply()
        self.assertEqual((reply.status, reply.json["error"]), (408, "RequestTooSlow"))
        await slow.closed
        self.clock.advance(70)
        fast.send(b"x" * 100)
        self.assertEqual((await fast.reply()).status, 200)

    async def test_the_slowest_bodies_are_refused_when_memory_is_short(self) -> None:
        slow = [await self.client() for _ in range(2)]
        for client in slow:
            client.send(request("POST", "/echo/w", b"x" * 1000)[:-100])
        while self.server.admission.buffered < 1800:
            await turn()
        self.clock.advance(9)
        fast = await self.client()
        fast.send(request("POST", "/echo/w", b"x" * 990))
        self.assertEqual((await fast.reply()).status, 200)
        while not (replies := [client for client in slow if b" 503 " in client.data]):
            await turn()
        self.assertEqual(len(replies), 1)
        for client in slow:
            client.send(b"x" * 100)
        kept = next(client for client in slow if client not in replies)
        self.assertEqual((await kept.reply()).status, 200)

    async def test_a_refused_client_that_keeps_sending_is_disconnected(self) -> None:
        client = await self.client()
        client.send(request("POST", "/echo/w", headers={"Content-Length": "9" * 15}))
        self.assertEqual((await client.reply()).status, 413)
        client.send(b"x" * 100_000)
        await turn()
        self.assertEqual(self.server.admission.buffered, 0)
        self.clock.advance(31)
        await client.closed

    async def test_a_new_connection_displaces_the_longest_idle_one(self) -> None:
        self.server.connections.limits = ConnectionLimits(3, 3)
        silent, partly, unfinished = [await self.client() for _ in range(3)]
        while len(self.server.connections) < 3:
            await turn()
        partly.send(b"GET /pub")
        unfinished.send(request("POST", "/echo/w", b"x" * 10)[:-1])
        while self.server.admission.buffered < 9:
            await turn()
        for victim, answer in ((silent, b""), (partly, b" 503 "), (unfinished, b" 503 ")):
            (await self.client()).send(request("GET", "/hold"))
            await victim.closed
            self.assertIn(answer, victim.data)
        await self.until_held(3)
        late = await self.client()
        late.send(request("GET", "/now"))
        await late.closed
        self.assertEqual(late.data, b"", "all are being answered")
        for held in self.held:
            held.callback(None)
        self.assertEqual(
            (self.server.connections.displaced, self.server.connections.refused), (3, 1)
        )

    async def test_some_connections_stay_free_for_requests_without_slots(self) -> None:
        limits = replace(self.limits, connections=ConnectionLimits(6, 6), max_requests=100)
        await self.listen_again(limits)
        for _ in range(limits.max_busy):
            (await self.client()).send(request("GET", "/hold"))
        await self.until_held(limits.max_busy)
        self.assertLess(limits.max_busy, 6)
        reply = await self.ask(request("GET", "/hold"))
        self.assertEqual((reply.status, reply.headers["retry-after"]), (503, "1"))
        for _ in range(5):
            await self.client()
        self.assertEqual((await self.ask(request("GET", "/now"))).status, 200)
        for held in self.held:
            held.callback(None)
        replies = [(await client.reply()).status for client in self.clients[: limits.max_busy]]
        self.assertEqual(replies, [200] * limits.max_busy)

    async def test_a_turn_answers_a_bounded_number_of_requests(self) -> None:
        """Of immediate ones it is more, and they do not wait behind the others."""
        await self.listen_again(replace(self.limits, max_requests=100))
        scheduler = TwistedScheduler(cast(Any, self.clock))
        self.server.slices = Slices(scheduler, units=300)
        self.server.immediate_slices = Slices(scheduler, units=300)
        clients = [await self.client() for _ in range(10)]
        for client in clients[:9]:
            client.send(request("GET", "/public"))
        while self.server.slices.waiting < 6:
            await turn()
        self.assertEqual(sum(self.server.responses.values()), 3)
        clients[9].send(request("GET", "/now") * 40)
        while not self.server.immediate_slices.waiting:
            await turn()
        self.assertEqual(self.server.responses["/now", 200], 15)
        while self.server.responses["/now", 200] < 40:
            self.clock.advance(0)
            await turn()
        self.assertEqual(self.server.responses["/public", 200], 9)

    async def test_a_client_that_does_not_read_is_aborted_when_memory_is_short(self) -> None:
        await self.listen_again(replace(self.limits, max_unread=10 * 2**20))
        clients = [await self.client() for _ in range(2)]
        for client in clients:
            transport: Any = client.transport
            transport.pauseProducing()
            client.send(request("GET", "/large"))
            while not self.server.admission.unread:
                await turn()
        self.assertEqual(await self.unread_at_most(self.server.limits.max_unread), 1)
        for client in clients:
            transport = client.transport
            transport.resumeProducing()
        await clients[0].closed
        self.assertEqual(len((await clients[1].reply()).body), LARGE)
        self.assertEqual(self.server.admission.unread, 0)

    async def unread_at_most(self, limit: int) -> int:
        """How many clients do not read, once their answers are no more than that."""
        while len(self.server.connections) > 1:
            await turn()
        self.assertLessEqual(self.server.admission.unread, limit)
        return len(self.server.connections)

    async def test_closes_idle_connections_at_once_and_others_after_their_answer(self) -> None:
        idle, busy = await self.client(), await self.client()
        idle.send(request("GET", "/public"))
        await idle.reply()
        busy.send(request("GET", "/hold"))
        await self.until_held(1)
        self.server.close_connections()
        await idle.closed
        self.held[0].callback(None)
        self.assertEqual((await busy.reply()).status, 200)
        await busy.closed


class SecretChecks(HttpServerCase):
    """A listener with a secret."""

    secret = "p" * 20

    async def test_requires_the_secret_unless_the_route_is_public(self) -> None:
        right = f"Bearer {self.secret}"
        for value in (None, "", "Bearer", "Bearer ", "Bearer x", self.secret, f"Basic {self.secret}",
                      right + "x", right[:-1], "Bearer é"):  # fmt: skip
            headers = {} if value is None else {"Authorization": value}
            for path in ("/echo/w", "/nope"):
                reply = await self.ask(request("GET", path, headers=headers))
                self.assertEqual((reply.status, reply.json["error"]), (401, "Unauthorized"), value)
                self.assertEqual(reply.headers["www-authenticate"], "Bearer")
            self.assertEqual(
                (await self.ask(request("GET", "/public", headers=headers))).status, 200
            )
        for value in (right, right.replace("Bearer", "bearer")):
            reply = await self.ask(request("GET", "/echo/w", headers={"Authorization": value}))
            self.assertEqual(reply.status, 200)

    async def test_refuses_a_missing_secret_before_the_body(self) -> None:
        client = await self.client()
        client.send(request("POST", "/echo/w", b"x" * 900)[:-1])
        self.assertEqual((await client.reply()).status, 401)
        self.assertEqual(self.server.admission.buffered, 0)
