"""Positions of streams out of a master's status."""

# mypy: disable-error-code="no-untyped-call"
# (trial's assertions have no types)

from __future__ import annotations

from typing import Any, cast

from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from synrepl.adapters.http.client import HttpClient, MasterAway
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.policy import AdminPolicy
from synrepl.adapters.http.positions import HttpPositions
from synrepl.adapters.http.routes import Route
from synrepl.adapters.http.server import HttpServer
from synrepl.adapters.http.source import BadAnswer, SecretRefused
from synrepl.core.errors import SynreplError
from synrepl.storage.store import RecordedPositions
from synrepl.streams.declared import declare
from tests.adapters.raw_http_client import ListeningServer, reactor

JOBS = declare("jobs", {"n": "bigint"})


class HttpPositionsRequests(TestCase):
    """A master whose answers a test decides."""

    timeout = 20

    def setUp(self) -> None:
        self.answer: HttpAnswer = json_answer({})
        server = HttpServer(
            cast(Any, Clock()), [Route("GET", "/status", self.status)], AdminPolicy("s3cret")
        )
        self.listening = ListeningServer(server)
        self.client = HttpClient(reactor, self.listening.url, "s3cret")

    async def tearDown(self) -> None:  # type: ignore[override]
        await self.client.close()
        await self.listening.stop()

    async def status(self, request: HttpRequest) -> HttpAnswer:
        return self.answer

    async def refused(self, kind: type[SynreplError], client: HttpClient) -> str:
        try:
            found = await HttpPositions(client).recorded(JOBS)
        except SynreplError as error:
            self.assertIs(type(error), kind, str(error))
            return str(error)
        raise AssertionError(f"{found} instead of {kind}")

    async def test_positions_include_those_of_removed_writers(self) -> None:
        stream = {"position": 7, "writers": {"w1": 7, "w2": 9}, "lag_rows": 0}
        for removed in ({}, {"removed_writers": {"old": 3}}):
            self.answer = json_answer(
                {"role": "master", "streams": {"jobs": {**stream, **removed}}}
            )
            wanted = {"w1": 7, "w2": 9, **({"old": 3} if removed else {})}
            found = await HttpPositions(self.client).recorded(JOBS)
            self.assertEqual(found, RecordedPositions(7, wanted))

    async def test_reports_the_largest_issued_token(self) -> None:
        stream = {"position": 7, "writers": {"w1": 7}}
        for status, wanted in (
            ({"jobs": {**stream, "last_reserved": 12}}, 12),
            ({"jobs": stream}, None),  # a master of an older version
            ({"others": stream}, 0),
        ):
            self.answer = json_answer({"streams": status})
            self.assertEqual(await HttpPositions(self.client).given_out(JOBS), wanted)
        self.answer = json_answer({}, 503)
        with self.assertRaises(MasterAway):
            await HttpPositions(self.client).given_out(JOBS)

    async def test_refuses_answers_that_are_no_status_of_the_stream(self) -> None:
        self.answer = json_answer({"streams": {}})
        self.assertIn("does not have it", await self.refused(BadAnswer, self.client))
        self.answer = json_answer({"streams": {"jobs": {"position": "7", "writers": {}}}})
        self.assertIn("$.streams", await self.refused(BadAnswer, self.client))

    async def test_a_master_that_does_not_answer_is_away(self) -> None:
        self.answer = json_answer({}, 503)
        await self.refused(MasterAway, self.client)
        stranger = HttpClient(reactor, self.listening.url, "guess")
        await self.refused(SecretRefused, stranger)
        await stranger.close()
