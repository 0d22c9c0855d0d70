"""Whatever a client sends: never an internal error, never another user's data, and errors of the specification."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet.threads import deferToThread

from synrepl.adapters.http.routes import Route
from synrepl.services.rooms.sync import sync
from tests.daemon.client_api.http_client import ClientReply
from tests.daemon.client_api.test_syncing import SyncCase

#: Requests.
EXAMPLES = int(os.environ.get("SYNREPL_FUZZED_REQUESTS", "400"))

#: In everything that nobody but Alice may read.
SECRET = "only Alice may read this"

#: Error codes of https://spec.matrix.org/v1.16/client-server-api/#standard-error-response and the sections of endpoints.
CODES = {
    "M_BAD_ALIAS", "M_BAD_JSON", "M_BAD_STATE", "M_CANNOT_LEAVE_SERVER_NOTICE_ROOM", "M_DUPLICATE_ANNOTATION",
    "M_EXCLUSIVE", "M_FORBIDDEN", "M_GUEST_ACCESS_FORBIDDEN", "M_INCOMPATIBLE_ROOM_VERSION",
    "M_INVALID_PARAM", "M_INVALID_ROOM_STATE", "M_INVALID_USERNAME", "M_LIMIT_EXCEEDED", "M_MISSING_PARAM",
    "M_MISSING_TOKEN", "M_NOT_FOUND", "M_NOT_JSON", "M_ROOM_IN_USE", "M_TOO_LARGE", "M_UNAUTHORIZED",
    "M_UNKNOWN", "M_UNKNOWN_POS", "M_UNKNOWN_TOKEN", "M_UNRECOGNIZED", "M_UNSUPPORTED_ROOM_VERSION",
    "M_USER_DEACTIVATED", "M_WRONG_ROOM_KEYS_VERSION",
}  # fmt: skip

#: Parameters of URLs that some endpoint knows.
PARAMETERS = (
    "since", "from", "to", "at", "dir", "limit", "filter", "timeout", "full_state", "set_presence", "membership",
    "not_membership", "format", "via", "server_name", "use_state_after", "reason", "user_id", "pos", "kind", "ts",
)  # fmt: skip

#: Members of bodies that some endpoint knows.
MEMBERS = (
    "user_id", "reason", "name", "topic", "invite", "preset", "room_version", "creation_content", "initial_state",
    "membership", "msgtype", "body", "redacts", "type", "content", "messages", "lists", "room_subscriptions", "pos",
    "typing", "timeout", "presence", "status_msg", "event_id", "m.fully_read", "m.read", "order", "password",
    "identifier", "room_id", "new_version", "room", "timeline", "types", "limit", "event_fields", "extensions",
    "conn_id", "thread_id", "room_alias_name", "power_level_content_override", "visibility", "token", "state_key",
)  # fmt: skip

_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=8), inner, max_size=5)
    ),
    max_leaves=10,
)


class FuzzedRequests(SyncCase):
    """Bob tries everything; Alice has secrets in a room of her own, and in all that she keeps."""

    timeout = 900
    client_api = (
        ", rate_limits: {requests: {per_second: 100000, burst: 100000},"
        " writes: {per_second: 100000, burst: 100000}, logins: {per_second: 100000, burst: 100000}}"
    )

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        reading = self.master_process.running.services.reading
        self.patch(reading.covered, "timeout_s", 0.0)  # nobody waits for tokens of the future
        self.patch(sync, "LONGEST_WAIT_S", 0.05)
        self.secret_room = await self.alice.create_room(name=SECRET, topic=SECRET)
        sent = await self.alice.say(self.secret_room, SECRET, "1")
        left = await self.alice.create_room(name="left", invite=[self.bob.user_id])
        for path in (f"/join/{quote(left)}", f"/rooms/{quote(left)}/leave"):
            self.assert_code(await self.bob.ask("POST", path, {}), 200)
        await self.alice.say(left, SECRET, "2")
        await self.alice.ask("PUT", f"/rooms/{quote(left)}/state/m.room.topic/", {"topic": SECRET})
        wanted = {"room": {"rooms": [SECRET]}}
        path = f"/user/{quote(self.alice.user_id)}/filter"
        stored = await self.alice.ask("POST", path, wanted)
        shown = await self.say(self.alice, "for both")
        mine, hers = await self.sync(self.bob), await self.sync(self.alice)
        self.assertIn(SECRET, json.dumps(hers))
        prev = self.joined(mine)["timeline"]["prev_batch"]
        self.tokens = [
            mine["next_batch"],
            hers["next_batch"],
            prev,
            hers["rooms"]["join"][self.secret_room]["timeline"]["prev_batch"],
        ]
        self.values = [
            self.room_id,
            self.secret_room,
            left,
            shown,
            sent.json["event_id"],
            self.alice.user_id,
            self.bob.user_id,
            stored.json["filter_id"],
            "#nothing:example.com",
            "m.room.message",
            "m.room.member",
            "",
        ]

    def routes(self) -> Sequence[Route]:
        """All routes of the listener for clients, but for those that log out or in."""
        clients = self.master_process.running.clients
        assert clients is not None
        return [
            each
            for each in clients.server.router.routes
            if not re.search("log(in|out)", each.pattern)
        ]

    def requests(self) -> st.SearchStrategy[tuple[Route, str, bytes | None]]:
        """Routes with a path and a body."""
        texts = st.text(max_size=20) | st.sampled_from(self.values)
        tokens = st.builds(
            _mutated, st.sampled_from(self.tokens), st.integers(0, 80), st.text(max_size=3)
        )
        parameters = st.dictionaries(
            st.sampled_from(PARAMETERS),
            st.one_of(
                tokens,
                st.sampled_from(self.tokens),
                texts,
                st.integers(-1, 2**65).map(str),
                st.sampled_from(["b", "f", "true", "0", "{}", '{"types":["m.*"]}', "event"]),
                _json.map(json.dumps),
            ),
            max_size=4,
        )

        def requests_to(route: Route) -> st.SearchStrategy[tuple[Route, str, bytes | None]]:
            names = re.findall("<([^>]*)>", route.pattern)
            members = st.dictionaries(st.sampled_from(MEMBERS), _json | texts, max_size=5)
            bodies = (members | _json).map(lambda value: json.dumps(value).encode())
            return st.tuples(
                st.just(route),
                st.builds(_path, st.just(route), st.tuples(*[texts for _ in names]), parameters),
                bodies | st.binary(max_size=40) if route.takes_body else st.none(),
            )

        return st.sampled_from(self.routes()).flatmap(requests_to)

    async def test_no_request_is_an_internal_error_or_shows_what_is_not_ones_own(self) -> None:
        statuses: Counter[int] = Counter()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(self.requests())
        def ask(request: tuple[Route, str, bytes | None]) -> None:
            route, path, body = request
            reply = self.bob.ask_now(route.method, path, body)
            statuses[reply.status] += 1
            self.check(reply, request)

        await deferToThread(ask)
        self.assertLessEqual({200, 400, 403, 404}, set(statuses))
        again = await self.sync(self.bob)
        self.assertNotIn(SECRET, json.dumps(again))

    async def test_bodies_that_are_no_json_are_refused(self) -> None:
        for route in self.routes():
            if not route.takes_body:
                continue
            path = _path(route, [self.values[0]] * 9, {"limit": "1"})
            for body in (b"{", b"\xff\xfe", b'{"a":' * 5_000, b"nul", b'{"a":1e999}'):
                reply = await self.bob.ask(route.method, path, body)
                self.assertNotEqual(reply.status // 100, 5, (route.pattern, body[:20], reply))

    def check(self, reply: ClientReply, request: object) -> None:
        """Check an answer to Bob."""
        where = (request, reply)
        self.assertNotEqual(reply.status, 500, where)
        self.assertNotIn(SECRET, json.dumps(reply.json), where)
        if reply.status >= 400:
            self.assertIn(reply.json["errcode"], CODES, where)
            self.assertNotIn("Traceback", reply.json["error"], where)


def _path(route: Route, values: Sequence[str], parameters: dict[str, str]) -> str:
    """The path of a request."""
    filled = iter(values)
    path = re.sub("<[^>]*>", lambda _: quote(next(filled, "x"), safe="") or "%20", route.pattern)
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
    return f"{path}?{query}" if query else path


def _mutated(token: str, at: int, text: str) -> str:
    """A token with something else in it."""
    at %= len(token)
    return token[:at] + text + token[at + 1 :]
