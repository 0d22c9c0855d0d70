"""Facts over HTTP for a follower: our own master, and answers as real servers give them."""

# mypy: disable-error-code="no-untyped-call"
# (trial's assertions have no types)

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from synrepl.adapters.http.client import AnswerTooLong, HttpClient, MasterAway
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.policy import AdminPolicy
from synrepl.adapters.http.routes import Route
from synrepl.adapters.http.server import HttpServer
from synrepl.adapters.http.source import (
    BadAnswer,
    HttpSource,
    NothingYet,
    RequestRefused,
    SecretRefused,
)
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Range
from synrepl.storage.store import Page, Trimmed
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.synapse import SYNAPSE_STREAMS
from tests.adapters.raw_http_client import ListeningServer, reactor

CATALOGUE = Catalogue((*SYNAPSE_STREAMS, declare("jobs", {"n": "bigint"})))
PATH = "/_synapse/replication/get_repl_stream_updates/<stream>/<id>"

#: (from_token, upto_token, limit) to an answer
Server = Callable[[int, int, int], object]


def updates(tokens: list[int], upto: int, limited: bool = False) -> dict[str, object]:
    """An answer with one row ``[token]`` at each token."""
    rows = [[token, [token]] for token in tokens]
    return {"updates": rows, "upto_token": upto, "limited": limited}


class HttpSourceCase(TestCase):
    """A client and a server whose answers a test decides."""

    timeout = 20
    secret: str | None = None

    def setUp(self) -> None:
        self.requests: list[HttpRequest] = []
        self.answers: Server = lambda after, upto, limit: updates([], upto)
        self.server = HttpServer(
            cast(Any, Clock()), [Route("GET", PATH, self.answer)], AdminPolicy("s3cret")
        )
        self.listening = ListeningServer(self.server)
        self.client = self.client_of(self.listening, "s3cret")
        self.source = HttpSource(self.client)

    def client_of(self, listening: ListeningServer, secret: str | None, **more: Any) -> HttpClient:
        return HttpClient(reactor, listening.url, secret, **more)

    async def tearDown(self) -> None:  # type: ignore[override]
        await self.client.close()
        await self.listening.stop()

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        self.requests.append(request)
        query = request.query
        found = self.answers(
            int(query["from_token"]), int(query["upto_token"]), int(query["limit"])
        )
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, HttpAnswer) else json_answer(found)

    async def page(
        self, after: int, upto: int, stream: str = "jobs", writer: str | None = "w"
    ) -> Page:
        return await self.source.page(CATALOGUE[stream], Range(after, upto), writer, 2000)

    async def refused(
        self, kind: type[SynreplError], after: int = 1, upto: int = 9
    ) -> SynreplError:
        try:
            page = await self.page(after, upto)
        except SynreplError as error:
            self.assertIs(type(error), kind, str(error))
            return error
        raise AssertionError(f"{page} instead of {kind}")


class HttpSourcePages(HttpSourceCase):
    """Requests for pages, and how their answers are processed."""

    async def test_requests_have_the_range_and_a_unique_id(self) -> None:
        await self.page(1, 9)
        await self.page(1, 9, writer=None)
        await self.page(1, 9, writer="")
        first, second, third = self.requests
        self.assertEqual(
            first.query,
            {
                "from_token": "1",
                "upto_token": "9",
                "limit": "2000",
                "rows": "current",
                "writer": "w",
            },
        )
        self.assertNotIn("writer", second.query)
        self.assertNotIn("writer", third.query)
        self.assertRegex(first.path["id"], "^[A-Za-z]{10}$")
        self.assertEqual(len({request.path["id"] for request in self.requests}), 3)

    async def test_rows_of_one_token_form_one_fact(self) -> None:
        rows = [[2, [5]], [2, [6]], [4, [7]]]
        self.answers = lambda *_: {"updates": rows, "upto_token": 4, "limited": True}
        page = await self.page(1, 9)
        self.assertEqual([(fact.token, fact.writer) for fact in page.facts], [(2, "w"), (4, "w")])
        self.assertEqual([[row.n for row in fact.rows] for fact in page.facts], [[5, 6], [7]])  # type: ignore[attr-defined]
        self.assertEqual((page.upto, page.is_limited), (4, True))

    async def test_an_empty_range_is_not_requested(self) -> None:
        self.assertEqual(await self.page(9, 9), Page((), 9, False))
        self.assertEqual(self.requests, [])

    async def test_an_answer_may_stop_short_without_saying_limited(self) -> None:
        self.answers = lambda after, upto, limit: (
            updates([8], 8) if after < 8 else updates([], upto)
        )
        page = await self.page(1, 30)
        self.assertEqual((page.upto, page.is_limited), (8, True))
        page = await self.page(8, 30)
        self.assertEqual((page.facts, page.upto, page.is_limited), ((), 30, False))

    async def test_facts_beyond_the_range_are_dropped(self) -> None:
        self.answers = lambda *_: updates([2, 5, 7, 8], 8, True)
        page = await self.page(1, 6)
        self.assertEqual([fact.token for fact in page.facts], [2, 5])
        self.assertEqual((page.upto, page.is_limited), (6, False))

    async def test_shorter_ranges_are_requested_when_the_newest_come_first(self) -> None:
        """As real servers give ``backfill``: when limited, the oldest are missing."""

        def newest_first(after: int, upto: int, limit: int) -> object:
            tokens = list(range(upto, after, -1))[:40]
            row = ["$e", "!r", "m.t", None, None, None]
            full = len(tokens) == 40
            end = tokens[-1] if full else upto
            return {"updates": [[n, row] for n in tokens], "upto_token": end, "limited": full}

        self.answers = newest_first
        got, after = [], 3
        while after < 200:
            page = await self.page(after, 200, "backfill")
            got += [fact.token for fact in page.facts]
            self.assertGreater(page.upto, after)
            after = page.upto
        self.assertEqual(got, list(range(4, 201)))

    async def test_newest_first_and_always_limited_is_a_bad_answer(self) -> None:
        self.answers = lambda after, upto, limit: updates([upto, upto - 1], upto - 1, True)
        self.assertIn("limited", str(await self.refused(BadAnswer)))
        self.assertLess(len(self.requests), 12)

    async def test_bad_rows_are_left_out_and_counted(self) -> None:
        rows = [[2, [5]], [2, ["x"]], [4, {}], [5, ["\ud800"]]]
        body = json.dumps({"updates": rows, "upto_token": 9, "limited": False}).encode()
        body = body.replace(b"\\\\ud800", b"\\ud800")
        self.answers = lambda *_: HttpAnswer(200, body.replace(b'["\\ud800"]', b"[true]"))
        page = await self.page(1, 9)
        self.assertEqual([len(fact.rows) for fact in page.facts], [1, 0, 0])
        self.assertEqual(self.source.bad_rows, {"jobs": 3})

    async def test_connections_are_reused(self) -> None:
        for _ in range(5):
            await self.page(1, 9)
        self.assertEqual(len(self.server.connections), 1)


class HttpSourceRefusals(HttpSourceCase):
    """Everything that goes wrong has a name."""

    async def test_each_status_has_its_error(self) -> None:
        for answer, kind, part in (
            (Trimmed(stream="jobs", trimmed=5, after=1), Trimmed, "up to 5"),
            (json_answer({"errcode": "M_UNKNOWN", "error": "Unknown stream"}, 400), RequestRefused, "Unknown stream"),
            (json_answer([], 404), RequestRefused, "404 Not Found"),
            (json_answer({"error": "x"}, 500), MasterAway, "500 Internal Server Error: x"),
            (HttpAnswer(503, b"<html>"), MasterAway, "503"),
            (json_answer({}, 403), SecretRefused, "403"),
            (json_answer({}, 410), RequestRefused, "410"),
            (json_answer({"trimmed": 1}, 410), RequestRefused, "410"),
            (json_answer({}, 302), RequestRefused, "302"),
        ):  # fmt: skip
            self.answers = lambda *_, answer=answer: answer
            error = await self.refused(kind)
            self.assertIn(part, str(error))
        self.assertEqual((await self.refused(RequestRefused)).facts["stream"], "jobs")

    async def test_a_missing_or_wrong_secret_is_refused(self) -> None:
        for secret in (None, "wrong"):
            client = self.client_of(self.listening, secret)
            self.source = HttpSource(client)
            await self.refused(SecretRefused)
            await client.close()

    async def test_unusable_answers_are_named(self) -> None:
        for answer in (
            HttpAnswer(200, b"<html>"),
            HttpAnswer(200, b""),
            HttpAnswer(200, b"\xff"),
            HttpAnswer(200, b"[" * 100_000),
            json_answer([]),
            json_answer({"updates": [], "upto_token": 5}),
            json_answer({"updates": [[1]], "upto_token": 5, "limited": False}),
            json_answer({"updates": [["2", [5]]], "upto_token": 5, "limited": False}),
            json_answer(updates([], 5) | {"upto_token": "5"}),
            json_answer(updates([3, 2], 5)),
            json_answer(updates([1, 2], 5)),
            json_answer(updates([0], 5)),
            json_answer(updates([], 0)),
            json_answer(updates([2], 1, True)),
        ):
            self.answers = lambda *_, answer=answer: answer
            await self.refused(BadAnswer)

    async def test_an_empty_answer_below_the_announced_position_is_an_error(self) -> None:
        """Our own master below what it announced: an error, so that the asker pauses."""
        for limited in (False, True):
            self.answers = lambda *_, limited=limited: updates([], 1, limited)
            await self.refused(NothingYet)

    async def test_a_master_that_does_not_listen_is_away(self) -> None:
        listening = ListeningServer(Factory.forProtocol(Protocol))
        client = self.client_of(listening, None)
        await listening.stop()
        self.source = HttpSource(client)
        self.assertIn("refused", str(await self.refused(MasterAway)))
        await client.close()


class OddServer(Factory[Any]):
    """Answers its one connection with whatever a test wants."""

    def __init__(self, reply: bytes, close: bool) -> None:
        self.reply = reply
        self.close = close
        self.connections: set[Protocol] = set()

    def buildProtocol(self, addr: object) -> Protocol:
        return _OddConnection(self)


class _OddConnection(Protocol):
    def __init__(self, server: OddServer) -> None:
        self._server = server

    def connectionMade(self) -> None:
        self._server.connections.add(self)

    def dataReceived(self, data: bytes) -> None:
        transport: Any = self.transport
        transport.write(self._server.reply)
        if self._server.close:
            transport.loseConnection()

    def connectionLost(self, reason: object = None) -> None:
        self._server.connections.discard(self)


class OddServers(HttpSourceCase):
    """Servers that do not keep to HTTP."""

    async def against(self, reply: bytes, close: bool, **more: Any) -> SynreplError:
        server = OddServer(reply, close)
        listening = ListeningServer(server)
        client = self.client_of(listening, None, **more)
        try:
            await client.get("/x", {})
        except SynreplError as error:
            return error
        finally:
            await client.close()
            await listening.stop()  # on a slow machine it may not even have been connected to
        raise AssertionError("no error")

    async def test_an_answer_that_breaks_off_means_the_master_is_away(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
        for reply in (b"", b"nonsense\r\n\r\n", head[:10], head, head + b"x" * 50):
            self.assertIsInstance(await self.against(reply, close=True), MasterAway)

    async def test_refuses_an_answer_that_is_too_long(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n"
        error = await self.against(head + b"x" * 100, close=False, max_answer=99)
        self.assertIsInstance(error, AnswerTooLong)

    async def test_no_answer_in_time_means_the_master_is_away(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
        for reply in (b"", head, head + b"x" * 50):
            error = await self.against(reply, close=False, timeout_s=0.1)
            self.assertIsInstance(error, MasterAway)
            self.assertIn("within 0.1 s", str(error))
