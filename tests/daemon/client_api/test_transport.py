"""Errors, CORS, access tokens, bodies and positions of the client API, over TCP."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from synrepl.adapters.client_api.rate_limits import RateLimit
from synrepl.adapters.client_api.write_positions import with_positions
from synrepl.adapters.http.messages import HttpAnswer, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.core.errors import Unavailable
from synrepl.daemon.client_api.endpoints import ClientRequest
from synrepl.daemon.client_api.session import session_routes
from synrepl.positions.vector import PositionVector
from synrepl.services.clients.identity import ClientIdentity
from tests.daemon.client_api.matrix_case import MatrixCase

V3 = "/_matrix/client/v3"
ECHO = f"{V3}/rooms/%21a/echo"


class _Body(msgspec.Struct):
    name: str
    age: int = 0


class AddressAway(Unavailable):
    """there is no connection to {where}"""


class TransportCase(MatrixCase):
    """Endpoints of each kind."""

    async def setUp(self) -> None:  # type: ignore[override]
        self.forgotten: list[ClientIdentity] = []
        await super().setUp()

    def routes(self) -> Sequence[Route]:
        return [
            *session_routes(self.endpoints, self.checker, "10", self.forget_device),
            *self.endpoints.get("/rooms/<room>/echo", self.echo),
            *self.endpoints.put("/rooms/<room>/echo", self.echo),
            *self.endpoints.post("/typed", self.typed),
            *self.endpoints.post("/written", self.written),
            *self.endpoints.post("/fail", self.fail_),
            *self.endpoints.get("/user/<user>/own", self.own),
        ]

    async def forget_device(self, identity: ClientIdentity) -> None:
        self.forgotten.append(identity)

    async def echo(self, request: ClientRequest) -> HttpAnswer:
        return json_answer(
            {
                "path": dict(request.path),
                "query": dict(request.query),
                "json": request.json(),
                "user": request.user_id,
                "n": request.number("n", 5, 1, 10),
                "f": request.flag("f"),
            }
        )

    async def typed(self, request: ClientRequest) -> HttpAnswer:
        body = request.body_as(_Body)
        return json_answer({"name": body.name, "age": body.age})

    async def written(self, request: ClientRequest) -> HttpAnswer:
        stream, token = request.query.get("stream", "events"), int(request.query["token"])
        return with_positions(json_answer({}), {stream: PositionVector({"w1": token})})

    async def fail_(self, request: ClientRequest) -> HttpAnswer:
        if "away" in request.query:
            raise AddressAway(where="10.0.0.1")
        raise RuntimeError("private detail")

    async def own(self, request: ClientRequest) -> HttpAnswer:
        request.check_own_user()
        return json_answer({})


class MatrixTransport(TransportCase):
    """What every endpoint has in common."""

    async def test_every_path_answers_a_preflight_with_the_headers_of_cors(self) -> None:
        for path in (ECHO, "/_matrix/client/unknown", "/"):
            reply = await self.ask("OPTIONS", path, token=None, Origin="https://app.example")
            self.assertEqual(reply.status, 200)
            self.assertEqual(reply.headers["access-control-allow-origin"], "*")
            self.assertEqual(
                reply.headers["access-control-allow-methods"], "GET, POST, PUT, DELETE, OPTIONS"
            )
            self.assertIn("Authorization", reply.headers["access-control-allow-headers"])

    async def test_answers_and_errors_carry_the_headers_of_cors(self) -> None:
        for token in ("@a:test/D1", None):
            reply = await self.ask("GET", ECHO, token=token, Origin="https://app.example")
            self.assertEqual(reply.headers["access-control-allow-origin"], "*")

    async def test_answers_to_any_host_and_to_pages_of_other_sites(self) -> None:
        reply = await self.ask(
            "PUT", ECHO, {}, Host="matrix.example", Origin="https://b", Sec_Fetch_Site="cross-site"
        )
        self.assertEqual(reply.status, 200)

    async def test_unknown_paths_and_methods_are_unrecognized(self) -> None:
        self.assert_error(await self.ask("GET", "/_matrix/client/v3/no"), 404, "M_UNRECOGNIZED")
        reply = await self.ask("DELETE", ECHO)
        self.assert_error(reply, 405, "M_UNRECOGNIZED")
        self.assertEqual(reply.headers["allow"], "GET, PUT, OPTIONS")

    async def test_versions_need_no_token(self) -> None:
        reply = await self.ask("GET", "/_matrix/client/versions", token=None)
        self.assertIn("v1.11", reply.json["versions"])

    async def test_a_token_is_required_and_must_be_known(self) -> None:
        self.assert_error(await self.ask("GET", ECHO, token=None), 401, "M_MISSING_TOKEN")
        self.assert_error(await self.ask("GET", ECHO, token="bad"), 401, "M_UNKNOWN_TOKEN")
        reply = await self.ask("GET", f"{ECHO}?access_token=%40b%3Atest%2FD", token=None)
        self.assertEqual(reply.json["user"], "@b:test")
        reply = await self.ask("GET", ECHO, token=None, Authorization="Basic Zm9v")
        self.assert_error(reply, 401, "M_MISSING_TOKEN")

    async def test_paths_and_queries_are_decoded(self) -> None:
        reply = await self.ask("GET", f"{ECHO}?q=%C3%A9%20x&via=a&via=b&n=3&f=true")
        self.assertEqual(reply.json["path"], {"room": "!a"})
        self.assertEqual(reply.json["query"]["q"], "é x")
        self.assertEqual((reply.json["n"], reply.json["f"]), (3, True))

    async def test_bad_parameters_are_refused(self) -> None:
        for query in ("a=1&a=2", "n=0", "n=x", "n=-1", "f=1", "q=%ff", "n=1000000000000000000000"):
            self.assert_error(await self.ask("GET", f"{ECHO}?{query}"), 400, "M_INVALID_PARAM")

    async def test_bodies_must_be_json_objects_within_limits(self) -> None:
        for body in (
            b"{",
            b"\xff",
            b'{"a":"\\ud800"}',
            b"{}{}",
            b'{"a":' * 200 + b"1" + b"}" * 200,
        ):
            if len(body) <= 1000:
                self.assert_error(await self.ask("PUT", ECHO, body), 400, "M_NOT_JSON")
        deep = b"[" * 150 + b"]" * 150
        self.assert_error(await self.ask("PUT", ECHO, deep), 400, "M_NOT_JSON")
        for body in (b"[]", b"1", b"null", b'"x"'):
            self.assert_error(await self.ask("PUT", ECHO, body), 400, "M_BAD_JSON")
        self.assertEqual((await self.ask("PUT", ECHO, b"")).json["json"], {})

    async def test_a_body_that_is_too_large_is_refused(self) -> None:
        self.assert_error(await self.ask("PUT", ECHO, b"x" * 1001), 413, "M_TOO_LARGE")

    async def test_typed_bodies_name_what_is_wrong(self) -> None:
        good = await self.ask("POST", f"{V3}/typed", {"name": "x", "other": [1]})
        self.assertEqual(good.json, {"name": "x", "age": 0})
        for body in ({}, {"name": 1}, {"name": "x", "age": "1"}):
            self.assert_error(await self.ask("POST", f"{V3}/typed", body), 400, "M_BAD_JSON")
        reply = await self.ask("POST", f"{V3}/typed", {"name": 1})
        self.assertIn("at name", reply.json["error"])

    async def test_an_unexpected_error_tells_no_details(self) -> None:
        reply = await self.ask("POST", f"{V3}/fail")
        self.assert_error(reply, 500, "M_UNKNOWN")
        self.assertNotIn("private", reply.json["error"])
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    async def test_what_is_away_may_be_asked_again(self) -> None:
        reply = await self.ask("POST", f"{V3}/fail?away=1")
        self.assert_error(reply, 503, "M_UNKNOWN")
        self.assertEqual(reply.headers["retry-after"], "1")
        self.assertNotIn("10.0.0.1", reply.json["error"])

    async def test_the_user_of_a_path_must_be_the_own_one(self) -> None:
        self.assertEqual((await self.ask("GET", f"{V3}/user/%40a%3Atest/own")).status, 200)
        reply = await self.ask("GET", f"{V3}/user/%40b%3Atest/own")
        self.assert_error(reply, 403, "M_FORBIDDEN")

    async def test_logs_in_and_out(self) -> None:
        path, body = f"{V3}/login", {"type": "m.login.password", "password": "right"}
        reply = await self.ask("GET", path, token=None)
        self.assertEqual(reply.json, {"flows": [{"type": "m.login.password"}]})
        reply = await self.ask("POST", path, body, token=None)
        token = reply.json["access_token"]
        self.assertEqual((reply.json["user_id"], reply.json["device_id"]), ("@a:test", "D1"))
        for version in ("v3", "r0"):
            who = await self.ask("GET", f"/_matrix/client/{version}/account/whoami", token=token)
            self.assertEqual(who.json, {"user_id": "@a:test", "device_id": "D1", "is_guest": False})
        self.assertEqual((await self.ask("POST", f"{V3}/logout", token=token)).json, {})
        self.assertEqual(self.checker.logged_out, [("@a:test", "D1")])
        self.assertEqual(self.forgotten, [("@a:test", "D1")])

    async def test_bad_logins_are_refused(self) -> None:
        path = f"{V3}/login"
        wrong = {"type": "m.login.password", "password": "wrong"}
        self.assert_error(await self.ask("POST", path, wrong, token=None), 403, "M_FORBIDDEN")
        other = {"type": "m.login.sso"}
        self.assert_error(await self.ask("POST", path, other, token=None), 400, "M_UNKNOWN")
        self.assert_error(await self.ask("POST", path, {}, token=None), 400, "M_BAD_JSON")

    async def test_the_position_of_a_write_is_waited_for_by_header_and_by_cookie(self) -> None:
        first = await self.ask("POST", f"{V3}/written?token=7")
        self.assertEqual(first.headers["x-synrepl-position"], "events:0~w1.7")
        cookie = first.headers["set-cookie"].partition(";")[0]
        self.assertEqual(cookie, "synrepl_position=events:0~w1.7")
        second = await self.ask("POST", f"{V3}/written?token=3&stream=receipts", Cookie=cookie)
        merged = second.headers["set-cookie"].partition(";")[0]
        self.assertEqual(merged, "synrepl_position=events:0~w1.7|receipts:0~w1.3")
        self.assertEqual(self.waits.waited, [])
        await self.ask("GET", ECHO, Cookie=f"other=1; {merged}")
        await self.ask("GET", ECHO, X_Synrepl_Position="events:0~w1.9")
        expected = {"events": PositionVector({"w1": 7}), "receipts": PositionVector({"w1": 3})}
        self.assertEqual(self.waits.waited, [expected, {"events": PositionVector({"w1": 9})}])

    async def test_a_malformed_position_is_refused_in_the_header_and_ignored_in_the_cookie(
        self,
    ) -> None:
        for text in ("events", "events:x", "Ä:1", "events:1|events", "events:1~" + "x" * 3000):
            if text.isascii():
                reply = await self.ask("GET", ECHO, X_Synrepl_Position=text)
                self.assert_error(reply, 400, "M_INVALID_PARAM")
                reply = await self.ask("GET", ECHO, Cookie=f"synrepl_position={text}")
                self.assertEqual(reply.status, 200)
        self.assertEqual(self.waits.waited, [])


class LimitedTransport(TransportCase):
    """A listener with low rate limits."""

    rates = RateLimit(1.0, 2)

    async def test_users_have_limits_of_their_own(self) -> None:
        statuses = [(await self.ask("GET", ECHO)).status for _ in range(3)]
        self.assertEqual(statuses, [200, 200, 429])
        reply = await self.ask("GET", ECHO)
        self.assert_error(reply, 429, "M_LIMIT_EXCEEDED")
        self.assertEqual(reply.json["retry_after_ms"], 1000)
        self.assertEqual(reply.headers["retry-after"], "1")
        self.assertEqual((await self.ask("GET", ECHO, token="@b:test/D")).status, 200)

    async def test_an_address_has_a_limit_of_logins_and_of_unknown_tokens(self) -> None:
        body = {"type": "m.login.password", "password": "wrong"}
        await self.ask("POST", f"{V3}/login", body, token=None)
        await self.ask("GET", ECHO, token="bad")
        for reply in (
            await self.ask("POST", f"{V3}/login", body, token=None),
            await self.ask("GET", ECHO, token="bad"),
        ):
            self.assert_error(reply, 429, "M_LIMIT_EXCEEDED")
        self.assertEqual((await self.ask("GET", ECHO)).status, 200)
