"""The blocking client of the command line, against the real listener."""

# mypy: disable-error-code="no-untyped-call"
# (trial's assertions have no types)

from __future__ import annotations

import socket
from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar, cast

from twisted.internet.task import Clock
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from synrepl.adapters.http_messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http_routes import Route
from synrepl.adapters.http_server import HttpServer
from synrepl.core.errors import Refused, SynreplError, Unavailable
from synrepl.daemon.http_blocking import (
    BadUrl,
    BlockingClient,
    NotSynrepl,
    ProcessAway,
    ProcessBusy,
    RequestFailed,
    SecretNeeded,
)
from tests.adapters.raw_http import Listening

T = TypeVar("T")


class AgainstAListener(TestCase):
    """Ordinary exchanges."""

    timeout = 20

    def setUp(self) -> None:
        self.answer_with: Callable[[HttpRequest], HttpAnswer] = lambda request: json_answer({})
        routes = [
            Route("GET", "/status", self.answer),
            Route("GET", "/ready", self.answer),
            Route("POST", "/streams/<stream>/facts", self.answer, takes_body=True),
            Route("GET", "/_synapse/replication/get_repl_stream_updates/<stream>", self.answer),
        ]
        self.server = HttpServer(cast(Any, Clock()), routes, secret="s3cret")
        self.listening = Listening(self.server)
        self.url = self.listening.url
        self.client = BlockingClient(self.url, "s3cret")

    async def tearDown(self) -> None:  # type: ignore[override]
        await self.listening.stop()

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        return self.answer_with(request)

    async def ask(self, call: Callable[[], T]) -> T:
        return await deferToThread(call)

    async def refused(self, kind: type[SynreplError], call: Callable[[], object]) -> str:
        try:
            await self.ask(call)
        except SynreplError as error:
            self.assertIs(type(error), kind)
            return str(error)
        raise AssertionError("no error")

    async def test_append(self) -> None:
        self.answer_with = lambda request: json_answer(
            {
                "stream": request.path["stream"],
                "body": request.body.decode(),
                "key": request.header("Idempotency-Key"),
            }
        )
        answer = await self.ask(lambda: self.client.append("my jobs/2", b"[[1]]", "k"))
        self.assertEqual(answer, {"stream": "my jobs/2", "body": "[[1]]", "key": "k"})
        answer = await self.ask(lambda: self.client.append("jobs", b"[[1]]"))
        self.assertIsNone(answer["key"])

    async def test_status_ready_and_updates(self) -> None:
        self.answer_with = lambda request: json_answer({"ready": False, **request.query}, 200)
        self.assertEqual(await self.ask(self.client.status), {"ready": False})
        updates = await self.ask(lambda: self.client.updates("jobs", {"from_token": 1}))
        self.assertEqual(updates, {"ready": False, "from_token": "1"})
        self.answer_with = lambda request: json_answer({"ready": False}, 503)
        self.assertEqual(await self.ask(self.client.ready), {"ready": False})

    async def test_refusals(self) -> None:
        self.answer_with = lambda request: self.raise_(Refused())
        told = await self.refused(RequestFailed, self.client.status)
        self.assertIn("409 Refused", told)
        self.answer_with = lambda request: self.raise_(Unavailable())
        self.assertIn("503 Unavailable", await self.refused(ProcessBusy, self.client.status))
        self.client = BlockingClient(self.url)
        self.assertIn("secret_path", await self.refused(SecretNeeded, self.client.status))

    async def test_a_body_that_is_too_long(self) -> None:
        body = b"x" * (16 * 2**20 + 1)
        told = await self.refused(RequestFailed, lambda: self.client.append("jobs", body))
        self.assertIn("413 BodyTooLarge", told)

    async def test_answers_that_are_none(self) -> None:
        for body in (b"", b"<html>", b"[]", b"\xff", b"[" * 100_000):
            self.answer_with = lambda request, body=body: HttpAnswer(200, body)  # type: ignore[misc]
            await self.refused(NotSynrepl, self.client.status)

    def raise_(self, error: Exception) -> HttpAnswer:
        raise error


class AgainstNothing(TestCase):
    """Addresses at which something else is, or nothing."""

    timeout = 20

    def listener(self, reply: bytes | None) -> str:
        """Answer one connection with ``reply``; with None, refuse all."""
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

    def test_nobody_there(self) -> None:
        with self.assertRaises(ProcessAway) as caught:
            BlockingClient(self.listener(None)).status()
        self.assertIn("refused", str(caught.exception))
        with self.assertRaises(ProcessAway):
            BlockingClient("http://127.0.0.1:1/", timeout_s=0.0001).status()

    def test_not_http(self) -> None:
        for reply in (
            b"SERVER example.org\n",
            b"",
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        ):
            with self.assertRaises((NotSynrepl, ProcessAway)):
                BlockingClient(self.listener(reply)).status()

    def test_no_answer_in_time(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with self.assertRaises(ProcessAway) as caught:
                BlockingClient(f"http://127.0.0.1:{port}", timeout_s=0.01).status()
        self.assertIn("0.01 s", str(caught.exception))

    def test_addresses_that_are_none(self) -> None:
        for url in ("", "localhost:9093", "ftp://x", "http://", "http://[", "http://h:x", "http://h/p",
                    "http://h?x", "http://h:99999"):  # fmt: skip
            with self.subTest(url), self.assertRaises(BadUrl):
                BlockingClient(url)
