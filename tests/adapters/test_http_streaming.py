"""Answers that are made while they are sent: as fast as their client reads, and never taken for whole when they are not."""

# mypy: disable-error-code="no-untyped-call"
# (trial's assertions have no types)

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, StreamedAnswer
from synrepl.adapters.http.routes import Route
from tests.adapters.raw_http_client import RawHttpClient, request, turn
from tests.adapters.test_http_server import HttpServerCase

CHUNK = b"x" * 100_000


class StreamedAnswers(HttpServerCase):
    def setUp(self) -> None:
        super().setUp()
        self.made = 0
        self.ended = 0

    def routes(self) -> Sequence[Route]:
        return [*super().routes(), Route("GET", "/stream/<count>", self.stream)]

    async def stream(self, request: HttpRequest) -> HttpAnswer:
        return StreamedAnswer(200, b"begin", chunks=self.chunks(int(request.path["count"])))

    async def chunks(self, count: int) -> AsyncIterator[bytes]:
        try:
            for _ in range(abs(count)):
                await turn()
                self.made += 1
                yield CHUNK
            if count < 0:
                raise ValueError("a page cannot be read")
        finally:
            self.ended += 1

    async def read(self, client: RawHttpClient, end: bytes = b"0\r\n\r\n") -> bytes:
        """What was received up to an end."""
        while not client.data.endswith(end) and not client.closed.called:
            await turn()
        return client.data

    async def test_an_answer_comes_in_chunks_to_its_end(self) -> None:
        client = await self.client()
        client.send(request("GET", "/stream/3"))
        head, _, body = (await self.read(client)).partition(b"\r\n\r\n")
        self.assertNotIn(b"Content-Length", head)
        self.assertIn(b"Transfer-Encoding: chunked", head)
        self.assertEqual(body.count(b"x"), 300_000)
        self.assertTrue(body.startswith(b"5\r\nbegin\r\n"))
        client.data = b""
        client.send(request("GET", "/public"))
        self.assertEqual((await client.reply()).status, 200)
        self.assertEqual(self.ended, 1)

    async def test_an_answer_is_made_no_faster_than_it_is_read(self) -> None:
        client = await self.client()
        client.transport.pauseProducing()  # type: ignore[attr-defined]
        client.send(request("GET", "/stream/150"))
        before = -1
        while self.made != before or not self.made:
            before = self.made
            for _ in range(50):
                await turn()
        self.assertLess(self.made, 120)
        client.transport.resumeProducing()  # type: ignore[attr-defined]
        body = await self.read(client)
        self.assertEqual(body.count(b"x"), 150 * len(CHUNK))

    async def test_an_error_aborts_the_connection(self) -> None:
        client = await self.client()
        client.send(request("GET", "/stream/-2"))
        data = await self.read(client)
        self.assertTrue(client.closed.called)
        self.assertFalse(data.endswith(b"0\r\n\r\n"))
        self.assertEqual(self.ended, 1)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    async def test_nothing_more_is_made_for_a_client_that_is_gone(self) -> None:
        client = await self.client()
        client.send(request("GET", "/stream/100000"))
        while not self.made:
            await turn()
        client.transport.abortConnection()  # type: ignore[attr-defined]
        while not self.ended:
            await turn()
        self.assertLess(self.made, 1000)

    async def test_a_client_that_does_not_read_is_cut_off(self) -> None:
        client = await self.client()
        client.transport.pauseProducing()  # type: ignore[attr-defined]
        client.send(request("GET", "/stream/100000"))
        while not self.ended:
            self.clock.advance(1)
            await turn()
        client.transport.resumeProducing()  # type: ignore[attr-defined]
        await self.read(client)
        self.assertTrue(client.closed.called)
