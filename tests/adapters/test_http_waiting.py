"""Requests that wait for what others do: in nobody's way, and gone with their client."""

# mypy: disable-error-code="no-untyped-call"
# (trial's assertions have no types)

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import CancelledError

from synrepl.adapters.http.limits import HttpLimits
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest
from synrepl.adapters.http.routes import Route
from tests.adapters.raw_http_client import request, turn
from tests.adapters.test_http_server import HttpServerCase


class WaitingRequests(HttpServerCase):
    limits = HttpLimits(max_requests=1, max_waiting=3)

    def setUp(self) -> None:
        super().setUp()
        self.cancelled = 0

    def routes(self) -> Sequence[Route]:
        return [*super().routes(), Route("GET", "/wait", self.wait, waits=True)]

    async def tearDown(self) -> None:
        await super().tearDown()
        self.assertEqual(self.server.admission.waiting, 0)

    async def wait(self, request: HttpRequest) -> HttpAnswer:
        try:
            return await self.hold(request)
        except CancelledError:
            self.cancelled += 1
            raise

    async def waiting(self, count: int) -> None:
        for _ in range(count):
            (await self.client()).send(request("GET", "/wait"))
        await self.until_held(count)

    async def test_waiting_requests_take_no_slot_from_others(self) -> None:
        await self.waiting(3)
        self.assertEqual((await self.ask(request("GET", "/public"))).status, 200)
        self.assertEqual((await self.ask(request("GET", "/wait"))).status, 503)
        self.held.pop().callback(None)
        self.assertEqual((await self.clients[2].reply()).status, 200)
        self.clients[2].send(request("GET", "/wait"))
        await self.until_held(3)
        for held in self.held:
            held.callback(None)
        self.assertEqual([(await client.reply()).status for client in self.clients[:3]], [200] * 3)

    async def test_waiting_requests_may_outlast_the_request_deadline(self) -> None:
        await self.waiting(1)
        for _ in range(10):
            self.clock.advance(30)
            await turn()
        self.held[0].callback(None)
        self.assertEqual((await self.clients[0].reply()).status, 200)

    async def test_a_client_that_disconnects_cancels_its_wait(self) -> None:
        await self.waiting(2)
        await self.clients[0].close()
        while self.server.admission.waiting > 1:
            await turn()
        self.assertEqual(self.cancelled, 1)
        self.held[1].callback(None)
        self.assertEqual((await self.clients[1].reply()).status, 200)
        self.assertEqual(self.server.responses, {("/wait", 200): 1})

    async def test_a_client_that_disconnects_before_reading_its_answer_is_forgotten(self) -> None:
        await self.waiting(1)
        self.held[0].callback(None)
        await self.clients[0].close()
        while self.server.connections:
            await turn()
        self.assertEqual((self.cancelled, self.server.admission.waiting), (0, 0))
