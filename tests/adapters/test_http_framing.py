"""Requests that could be read in more than one way: refused, and nothing behind them is looked at."""

# mypy: disable-error-code="no-untyped-call"
# (trial's assertions have no types)

from __future__ import annotations

from tests.adapters.raw_http_client import request
from tests.adapters.test_http_server import HttpServerCase

HEAD = b"POST /echo/w HTTP/1.1\r\nHost: localhost\r\n"
CHUNK = b"1\r\nx\r\n0\r\n\r\n"


class RequestFraming(HttpServerCase):
    """Bytes after a request are a request of their own, unless the first one was refused."""

    async def refused(self, data: bytes) -> None:
        """Bytes are answered by one 400, and no handler hears of them or of what is behind them."""
        client = await self.client()
        client.send(data + request("POST", "/echo/hidden", b"x"))
        await client.closed
        self.assertEqual(client.data.count(b"HTTP/1.1 "), 1, (data, client.data))
        self.assertTrue(
            client.data.startswith(b"HTTP/1.1 400 Bad Request\r\n"), (data, client.data)
        )
        self.assertIn(b'"error":"BadRequest"', client.data)
        self.assertEqual({route for route, _ in self.server.responses}, {"-"}, data)

    async def test_refuses_transfer_codings_other_than_chunked(self) -> None:
        for value in (
            b"chunked, identity",
            b"identity, chunked",
            b"identity",
            b"gzip, chunked",
            b"chunked, chunked",
            b"chunked;x=1",
            b"x",
            b"",
            b"\x0bchunked",
        ):
            for more in (b"", b"Content-Length: 1\r\n", b"X-Last: 1\r\n"):
                await self.refused(
                    HEAD + b"Transfer-Encoding: %b\r\n%b\r\n" % (value, more) + CHUNK
                )

    async def test_refuses_a_transfer_coding_in_two_headers(self) -> None:
        for first, second in ((b"chunked", b"identity"), (b"identity", b"chunked")):
            await self.refused(
                HEAD
                + b"Transfer-Encoding: %b\r\nTransfer-Encoding: %b\r\n\r\n" % (first, second)
                + CHUNK
            )

    async def test_refuses_a_transfer_coding_together_with_a_length(self) -> None:
        for first, second in (
            (b"Transfer-Encoding: chunked", b"Content-Length: 11"),
            (b"Content-Length: 11", b"Transfer-Encoding: chunked"),
        ):
            for more in (b"", b"X-Last: 1\r\n"):
                await self.refused(
                    HEAD + first + b"\r\n" + second + b"\r\n" + more + b"\r\n" + CHUNK
                )

    async def test_refuses_malformed_lengths(self) -> None:
        for value in (b"+1", b"-1", b"1, 1", b"0x1", b"1 1", b"", b"\xb2", b"9" * 19, b"9" * 5_000):
            for more in (b"", b"X-Last: 1\r\n"):
                await self.refused(HEAD + b"Content-Length: %b\r\n%b\r\nx" % (value, more))

    async def test_refuses_two_lengths(self) -> None:
        for second in (b"1", b"2"):
            await self.refused(HEAD + b"Content-Length: 1\r\nContent-Length: %b\r\n\r\nx" % second)

    async def test_refuses_a_folded_header(self) -> None:
        for data in (
            HEAD + b"X-Word: a\r\n b\r\n\r\n",
            HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNK,
            HEAD + b"Transfer-Encoding: chunked\r\n\t, identity\r\n\r\n" + CHUNK,
            b"POST /echo/w HTTP/1.1\r\n Host: localhost\r\n\r\n",
        ):
            await self.refused(data)

    async def test_refuses_malformed_line_ends(self) -> None:
        for data in (
            b"POST /echo/w HTTP/1.1\nHost: localhost\n\n\r\n\r\n",
            HEAD + b"X-Word: a\nContent-Length: 1\r\n\r\n",
            HEAD + b"X-Word: a\rContent-Length: 1\r\n\r\n",
            HEAD + b"X-Word: a\x00\r\n\r\n",
            HEAD + b"Content-Length : 1\r\n\r\nx",
            HEAD + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNK,
            HEAD + b"\x00Content-Length: 1\r\n\r\nx",
            HEAD + b"no colon\r\nX-Last: 1\r\n\r\n",
        ):
            await self.refused(data)

    async def test_refuses_malformed_chunks(self) -> None:
        head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
        for body in (
            b"x\r\n",
            b"-1\r\nx\r\n",
            b"1\nx\r\n0\r\n\r\n",
            b"1\r\nxx\r\n0\r\n\r\n",
            b"+1\r\nx",
        ):
            await self.refused(head + body)

    async def test_refuses_chunks_in_versions_without_them(self) -> None:
        head = b"POST /echo/w HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"
        await self.refused(head + CHUNK)

    async def test_malformed_input_after_an_answer_gets_no_second_answer(self) -> None:
        client = await self.client()
        head = b"POST /nope HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.send(head + b"zz\r\n")
        await client.closed
        self.assertEqual(client.data.count(b"HTTP/1.1 "), 1)
        self.assertIn(b" 404 ", client.data)

    async def test_accepts_well_formed_requests(self) -> None:
        for value in ("chunked", "Chunked", " chunked "):
            data = request("POST", "/echo/w", headers={"Transfer-Encoding": value}) + CHUNK
            reply = await self.ask(data)
            self.assertEqual((reply.status, reply.json["body"]), (200, "x"), value)
        client = await self.client()
        client.send(b"\r\n" + request("POST", "/echo/a", b"x") + request("GET", "/echo/b"))
        self.assertEqual([(await client.reply()).status for _ in range(2)], [200, 200])
