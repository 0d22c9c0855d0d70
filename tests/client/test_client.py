"""The clients against the real HTTP listener, blocking and asynchronous alike."""

# mypy: disable-error-code="no-untyped-call"
# (trial's assertions have no types)

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, TypeVar, cast

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.ssl import DefaultOpenSSLContextFactory
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThread
from twisted.protocols.portforward import ProxyFactory
from twisted.trial.unittest import TestCase

from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.policy import AdminPolicy
from synrepl.adapters.http.routes import Route
from synrepl.adapters.http.server import HttpServer
from synrepl.client.async_client import AsyncClient
from synrepl.client.client import Client
from synrepl.client.errors import (
    AppendRefused,
    AppendUnconfirmed,
    BadRows,
    BadSecret,
    BadUrl,
    SecretRequired,
    ServerBusy,
    ServerRefused,
    ServerUnreachable,
    ServerUntrusted,
    UnusableAnswer,
    WaitExpired,
)
from synrepl.core.errors import Refused, SynreplError, Unavailable
from synrepl.core.names import BadKey
from synrepl.storage.database import CommitUnknown
from tests.adapters.raw_http_client import ListeningServer
from tests.adapters.test_redis_pubsub import certificate

E = TypeVar("E", bound=SynreplError)

reactor: Any = _reactor

UNKNOWN = CommitUnknown(where="db", name="append", xid=7, reason="gone")

SECRET = "s3cret-of-the-listener"


class ListenerCase(TestCase):
    """A listener that answers what a test says, and notes what it was asked."""

    timeout = 30

    #: Whether to ask by the asynchronous client.
    is_async: ClassVar = False

    def setUp(self) -> None:
        self.requests: list[HttpRequest] = []
        #: Called in turn; the last one for all that follow.
        self.answers: list[Callable[[HttpRequest], HttpAnswer]] = [lambda request: json_answer({})]
        routes = [
            Route("GET", "/status", self.answer),
            Route("GET", "/ready", self.answer),
            Route("GET", "/caches", self.answer),
            Route("GET", "/streams/<stream>/wait", self.answer, waits=True),
            Route("POST", "/streams/<stream>/facts", self.answer, takes_body=True),
            Route("POST", "/caches/audit", self.answer, takes_body=True),
        ]
        self.server = HttpServer(cast(Any, Clock()), routes, AdminPolicy(SECRET))
        self.listening = ListeningServer(self.server)
        self.url = self.listening.url
        self.options: dict[str, Any] = {"secret": SECRET}

    async def tearDown(self) -> None:  # type: ignore[override]
        await self.listening.stop()

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        self.requests.append(request)
        make = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return make(request)

    def ask(self, method: str, *args: Any, **kwargs: Any) -> Deferred[Any]:
        """Call a method of a client in a thread."""

        def blocking() -> Any:
            with Client(self.url, **self.options) as client:
                return getattr(client, method)(*args, **kwargs)

        async def main() -> Any:
            async with AsyncClient(self.url, **self.options) as client:
                return await getattr(client, method)(*args, **kwargs)

        return deferToThread((lambda: asyncio.run(main())) if self.is_async else blocking)

    async def refused(self, kind: type[E], method: str, *args: Any, **kwargs: Any) -> E:
        """The error of a call, of exactly this class."""
        try:
            await self.ask(method, *args, **kwargs)
        except SynreplError as error:
            self.assertIs(type(error), kind, error)
            return cast(E, error)
        raise AssertionError("no error")

    @property
    def keys(self) -> list[str | None]:
        """The idempotency keys of the requests."""
        return [request.header("Idempotency-Key") for request in self.requests]


def raising(error: Exception) -> Callable[[HttpRequest], HttpAnswer]:
    """Answers with an error, as the real routes do."""

    def answer(request: HttpRequest) -> HttpAnswer:
        raise error

    return answer


def appended(request: HttpRequest) -> HttpAnswer:
    """Answers an append as a master does, with IDs from 1 on."""
    body = json.loads(request.body)
    facts = body.get("rows", body.get("facts"))
    ids = list(range(1, len(facts) + 1))
    return json_answer({"stream": request.path["stream"], "writer": "w", "ids": ids})


def status(code: int, **headers: str) -> Callable[[HttpRequest], HttpAnswer]:
    """Answers with a status and no JSON, as a proxy does."""
    fields = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return lambda request: HttpAnswer(code, b"<html>no</html>", "text/html", fields)


class ClientRequests(ListenerCase):
    """Ordinary exchanges."""

    async def test_appends_rows_and_facts_with_a_key_of_their_own(self) -> None:
        self.answers = [appended]
        answer = await self.ask("append", "my jobs/2", [[1, "a"], (2, None)])
        self.assertEqual((answer.stream, answer.writer, answer.ids), ("my jobs/2", "w", (1, 2)))
        self.assertEqual((answer.tokens, answer.token, answer.attempts), ((1, 2), 2, 1))
        self.assertIs(answer.replayed, False)
        await self.ask("append_facts", "jobs", [[[1], [2]], [[3]]], key="mine")
        self.assertEqual(
            [request.body for request in self.requests],
            [b'{"rows":[[1,"a"],[2,null]]}', b'{"facts":[[[1],[2]],[[3]]]}'],
        )
        self.assertEqual(self.requests[0].path["stream"], "my jobs/2")
        self.assertEqual(self.keys[1], "mine")
        await self.ask("append", "jobs", [[1]])
        self.assertEqual(len(set(self.keys)), 3)
        self.assertRegex(str(self.keys[2]), r"^[\w-]{22}$")

    async def test_tokens_of_a_stream_that_counts_down_are_positive(self) -> None:
        self.answers = [lambda request: json_answer({"writer": "w", "ids": [-7, -8]})]
        answer = await self.ask("append", "backfill", [[1], [2]])
        self.assertEqual((answer.ids, answer.tokens, answer.token), ((-7, -8), (7, 8), 8))

    async def test_appends_many_rows_in_requests_with_keys_that_a_repetition_has_again(
        self,
    ) -> None:
        self.answers = [appended]
        rows = [[n, "x" * 100] for n in range(25)]
        for _ in range(2):
            batches = await self.ask(
                "append_batches", "jobs", iter(rows), key="load", batch_rows=10
            )
            self.assertEqual([len(batch.ids) for batch in batches], [10, 10, 5])
        self.assertEqual(self.keys, ["load-0", "load-1", "load-2"] * 2)
        bodies = [json.loads(request.body)["rows"] for request in self.requests]
        self.assertEqual(bodies[0] + bodies[1] + bodies[2], rows)
        self.assertEqual(bodies[:3], bodies[3:])
        big = [["x" * 600_000], ["y" * 600_000], ["z"]]
        batches = await self.ask("append_batches", "jobs", big, key="big")
        self.assertEqual([len(batch.ids) for batch in batches], [2, 1])
        self.assertEqual(await self.ask("append_batches", "jobs", [], key="none"), [])

    async def test_reads_status_and_readiness_whatever_it_is(self) -> None:
        self.answers = [lambda request: json_answer({"ready": False}, 503)]
        self.assertEqual(await self.ask("ready"), {"ready": False})
        self.answers = [lambda request: json_answer({"streams": {}})]
        self.assertEqual(await self.ask("status"), {"streams": {}})

    async def test_waits_for_what_was_appended(self) -> None:
        self.answers = [appended, lambda request: json_answer({"position": 9})]
        answer = await self.ask("append", "jobs", [[1], [2]])
        self.assertEqual(await self.ask("wait", answer, timeout_s=3), 9)
        query = self.requests[-1].query
        self.assertEqual((query["token"], query["writer"]), ("2", "w"))
        self.assertLessEqual(float(query["timeout"]), 3.0)
        self.assertGreater(float(query["timeout"]), 2.0)
        await self.ask("wait_for", "jobs", None, 5)
        self.assertNotIn("writer", self.requests[-1].query)


class ClientRefusals(ListenerCase):
    """What the listener says becomes a named error."""

    async def test_a_refusal_has_the_status_the_code_and_the_message_of_the_server(self) -> None:
        self.answers = [raising(Refused())]
        error = await self.refused(ServerRefused, "status")
        self.assertEqual((error.status, error.code), (409, "Refused"))
        self.assertIn("409 Refused", str(error))
        refused = await self.refused(AppendRefused, "append", "jobs", [[1]])
        self.assertEqual((refused.status, refused.code), (409, "Refused"))
        self.assertEqual(refused.message, str(Refused()))
        self.assertIn("nothing was appended to stream 'jobs'", str(refused))
        self.assertEqual(len(self.requests), 2)  # it would be refused again

    async def test_a_missing_or_wrong_secret_is_named(self) -> None:
        for options in ({}, {"secret": "wrong"}):
            self.options = options
            error = await self.refused(SecretRequired, "append", "jobs", [[1]])
            self.assertIn("'secret_path'", str(error))
            self.assertNotIn("wrong", str(error))

    async def test_a_body_that_is_too_long_is_refused(self) -> None:
        rows = [["x" * (16 * 2**20)]]
        error = await self.refused(AppendRefused, "append", "jobs", rows)
        self.assertIn("413 BodyTooLarge", str(error))

    async def test_unusable_answers_are_named(self) -> None:
        for body in (b"", b"<html>", b"[]", b"\xff", b"[" * 100_000):
            self.answers = [lambda request, body=body: HttpAnswer(200, body)]  # type: ignore[misc]
            await self.refused(UnusableAnswer, "status")
        for body in ({}, {"ids": [1]}, {"ids": ["1"], "writer": "w"}, {"ids": [], "writer": "w"},
                     {"ids": 1, "writer": "w"}, {"ids": [1], "writer": 2}):  # fmt: skip
            self.answers = [lambda request, body=body: json_answer(body)]  # type: ignore[misc]
            error = await self.refused(AppendUnconfirmed, "append", "jobs", [[1]])
            self.assertIn("cannot be used", str(error))
        await self.refused(UnusableAnswer, "wait_for", "jobs", "w", 1)

    async def test_rows_and_keys_that_cannot_be_sent_are_refused(self) -> None:
        for rows, path in (
            (["o1", 5], "rows[0]"),
            ([[1], {"id": 1}], "rows[1]"),
            ([[1], [2], [object()]], "rows[2]"),
            ([[2**64]], "rows[0]"),
        ):
            error = await self.refused(BadRows, "append", "jobs", rows)
            self.assertIn(f"at {path}: ", str(error))
        error = await self.refused(BadRows, "append_facts", "jobs", [[[1]], [[1], 2]])
        self.assertIn("at facts[1][1]: ", str(error))
        for key in ("", "a b", "a\nb", "ä", "x" * 256):
            await self.refused(BadKey, "append", "jobs", [[1]], key=key)
        self.assertEqual(self.requests, [])

    async def test_a_wait_that_times_out_is_named(self) -> None:
        body = {"error": "WaitTimedOut", "message": "waited 1 s; handler mail holds it up"}
        self.answers = [lambda request: json_answer(body, 504)]
        error = await self.refused(WaitExpired, "wait_for", "jobs", "w", 7)
        self.assertIn("handler mail holds it up", str(error))
        self.assertEqual(len(self.requests), 1)


class ClientRetries(ListenerCase):
    """What fails for now is repeated, with the same key."""

    async def test_an_append_is_repeated_until_the_process_takes_it(self) -> None:
        self.answers = [
            raising(Unavailable()),
            status(429, Retry_After="0"),
            status(502),
            raising(UNKNOWN),
            appended,
        ]
        answer = await self.ask("append", "jobs", [[1]])
        self.assertEqual((answer.ids, answer.attempts), ((1,), 5))
        self.assertEqual(len(set(self.keys)), 1)

    async def test_a_wait_is_repeated_with_the_time_that_is_left(self) -> None:
        self.answers = [status(429), status(503), lambda request: json_answer({"position": 1})]
        await self.ask("wait_for", "jobs", "w", 1, timeout_s=5)
        left = [float(request.query["timeout"]) for request in self.requests]
        self.assertEqual(left, sorted(left, reverse=True))
        self.assertLess(left[2], left[0])

    async def test_reports_at_once_that_the_process_is_busy_without_retries(self) -> None:
        self.options["retries"] = False
        self.answers = [raising(Unavailable())]
        error = await self.refused(ServerBusy, "status")
        self.assertIn("503 Unavailable", str(error))
        await self.refused(ServerBusy, "append", "jobs", [[1]])
        self.assertEqual(len(self.requests), 2)

    async def test_gives_up_at_once_when_the_process_wants_a_longer_pause_than_is_left(
        self,
    ) -> None:
        self.answers = [status(503, Retry_After="3600")]
        await self.refused(ServerBusy, "append", "jobs", [[1]])
        self.assertEqual(len(self.requests), 1)

    async def test_an_append_whose_outcome_is_unknown_names_the_key_to_repeat_with(self) -> None:
        self.options["retries"] = False
        for answer in (status(502), raising(UNKNOWN)):
            self.answers = [answer]
            error = await self.refused(AppendUnconfirmed, "append", "jobs", [[1]])
            self.assertEqual(error.key, self.keys[-1])
            self.assertIn(f"repeat the call with key={error.key!r}", str(error))


class AsyncClientRequests(ClientRequests):
    is_async = True


class AsyncClientRefusals(ClientRefusals):
    is_async = True


class AsyncClientRetries(ClientRetries):
    is_async = True


class ClientSecrets(ListenerCase):
    """The secret is sent, and shown nowhere."""

    async def test_neither_messages_nor_logs_nor_representations_hold_the_secret(self) -> None:
        records: list[str] = []
        handler = logging.Handler(logging.DEBUG)
        handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
        root = logging.getLogger()
        level = root.level
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        self.addCleanup(root.setLevel, level)
        self.addCleanup(root.removeHandler, handler)
        self.answers = [raising(Refused())]
        for self.is_async in (False, True):
            error = await self.refused(AppendRefused, "append", "jobs", [[1]])
            self.assertNotIn(SECRET, f"{error!r} {error} {error.facts}")
        self.assertTrue(records)
        self.assertNotIn(SECRET, "\n".join(records))
        with Client(self.url, SECRET) as client:
            self.assertEqual(repr(client), f"Client({self.url!r})")
        self.assertEqual(repr(AsyncClient(self.url, SECRET)), f"AsyncClient({self.url!r})")

    async def test_proxies_of_the_environment_are_not_used(self) -> None:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            self.patch(__import__("os"), "environ", {name: "http://127.0.0.1:1"})
            self.assertEqual(await self.ask("status"), {})

    def test_refuses_a_secret_that_no_header_can_hold(self) -> None:
        for secret in ("", "a b", "a\r\nX: y", "ü"):
            with self.assertRaises(BadSecret) as caught:
                Client("http://127.0.0.1:1", secret)
            self.assertNotIn(repr(secret), str(caught.exception))


class OtherTransports(ListenerCase):
    """Unix sockets, and TLS: what stands before a listener."""

    async def test_connects_over_a_unix_socket(self) -> None:
        path = self.mktemp()
        factory = ProxyFactory("127.0.0.1", self.listening.port)
        port = reactor.listenUNIX(path, factory)
        self.addCleanup(port.stopListening)
        self.url = "http://localhost"
        self.options["unix_socket"] = Path(path)
        for self.is_async in (False, True):
            self.assertEqual(await self.ask("status"), {})

    async def test_verifies_the_server_against_the_given_authority_only(self) -> None:
        folder = Path(self.mktemp())
        folder.mkdir()
        certificate(folder)
        context = DefaultOpenSSLContextFactory(str(folder / "key.pem"), str(folder / "ca.pem"))
        port = reactor.listenSSL(0, self.server, context, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        self.url = f"https://localhost:{port.getHost().port}"
        for self.is_async in (False, True):
            self.options["tls"] = ssl.create_default_context(cafile=folder / "ca.pem")
            self.assertEqual(await self.ask("status"), {})
            del self.options["tls"]
            error = await self.refused(ServerUntrusted, "status")  # at once: it will not change
            self.assertIn("self-signed certificate", str(error))


class UnusableServers(TestCase):
    """Addresses at which something else is, or nothing."""

    timeout = 20

    def listener(self, reply: bytes | None) -> str:
        """HttpReply one connection with ``reply``; with None, refuse all."""
        server = socket.create_server(("127.0.0.1", 0))
        port = server.getsockname()[1]
        if reply is None:
            server.close()
            return f"http://127.0.0.1:{port}"

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(reply)

        thread = Thread(target=answer)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.close)
        return f"http://127.0.0.1:{port}"

    def calls(self, url: str, **options: Any) -> Iterator[Callable[[str], Any]]:
        """Calls a method that takes nothing, in either client."""

        def blocking(method: str, *args: Any) -> Any:
            with Client(url, **options) as client:
                return getattr(client, method)(*args)

        def of_coroutine(method: str, *args: Any) -> Any:
            async def main() -> Any:
                async with AsyncClient(url, **options) as client:
                    return await getattr(client, method)(*args)

            return asyncio.run(main())

        yield from (blocking, of_coroutine)

    def test_a_server_that_does_not_listen_is_unreachable(self) -> None:
        for call in self.calls(self.listener(None), retries=False):
            with self.assertRaises(ServerUnreachable) as caught:
                call("status")
            self.assertIn("refused", str(caught.exception))
            with self.assertRaises(ServerUnreachable):  # nothing was sent, so nothing is unknown
                call("append", "jobs", [[1]])  # type: ignore[call-arg]

    def test_a_server_that_does_not_speak_http_is_named(self) -> None:
        for reply in (
            b"SERVER example.org\n",
            b"",
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        ):
            for number in (0, 1):
                call = list(self.calls(self.listener(reply), retries=False))[number]
                with self.assertRaises((UnusableAnswer, ServerUnreachable)):
                    call("status")

    def test_an_append_whose_answer_breaks_off_is_unconfirmed(self) -> None:
        for reply in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}"):
            for number in (0, 1):
                call = list(self.calls(self.listener(reply), retries=False))[number]
                with self.assertRaises(AppendUnconfirmed):
                    call("append", "jobs", [[1]])  # type: ignore[call-arg]

    def test_no_answer_in_time_is_unreachable(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            for call in self.calls(f"http://127.0.0.1:{port}", timeout_s=0.05):
                with self.assertRaises(ServerUnreachable) as caught:
                    call("status")
                self.assertRegex(str(caught.exception), r"no answer within 0\.0\d* s")
                with self.assertRaises(AppendUnconfirmed):
                    call("append", "jobs", [[1]])  # type: ignore[call-arg]

    def test_an_endless_answer_is_cut_off(self) -> None:
        from synrepl.client import async_client, client

        for module in (client, async_client):
            self.patch(module, "MAX_ANSWER", 1_000)
        reply = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b" " * 5_000
        for number in (0, 1):
            call = list(self.calls(self.listener(reply), retries=False))[number]
            with self.assertRaises(UnusableAnswer) as caught:
                call("status")
            self.assertIn("longer than", str(caught.exception))

    def test_refuses_malformed_addresses(self) -> None:
        for url in ("", "localhost:9093", "ftp://x", "http://", "http://[", "http://h:x", "http://h/p",
                    "http://h?x", "http://h:99999", "http://user:hush@h:1"):  # fmt: skip
            with self.subTest(url), self.assertRaises(BadUrl) as caught:
                Client(url)
            self.assertNotIn("hush", str(caught.exception))
