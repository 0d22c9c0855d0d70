"""The endpoints of the client API, of a master in this process, over TCP."""

from __future__ import annotations

import json
import urllib.request
from itertools import product
from random import Random
from typing import Any
from urllib.parse import quote

from twisted.internet.threads import deferToThread

from synrepl.daemon.config.signing_key import new_signing_key
from tests.cli.cli_case import CliCase, InProcessMaster, free_port
from tests.daemon.client_api.http_client import ClientReply, HttpMatrixClient
from tests.daemon.client_api.random_json import random_json

USERS = "users:\n" + "".join(
    f'  "@{name}:example.com": password of {name}\n' for name in ("alice", "bob", "carol")
)


class ClientApiCase(CliCase):
    """A master with a listener for clients, and three users."""

    timeout = 120
    #: Settings of ``client_api``, as YAML.
    client_api = ""
    catalogue = "[events, backfill, caches, account_data, receipts, typing, presence, to_device]"

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        for name, text in (("users.yaml", USERS), ("signing.key", new_signing_key("1"))):
            path = self.directory / name
            path.write_text(text)
            path.chmod(0o600)
        self.clients_port = free_port()
        self.master_process: InProcessMaster = await self.master(
            catalogue=self.catalogue,
            data_dir=str(self.directory),
            rooms=f"{{client_api: {{port: {self.clients_port}{self.client_api}}}}}",
        )
        self.alice, self.bob, self.carol = [
            await self.user(name) for name in ("alice", "bob", "carol")
        ]

    async def user(self, name: str) -> HttpMatrixClient:
        """A client that is logged in."""
        client = HttpMatrixClient(self.clients_port)
        reply = await client.log_in(name, f"password of {name}")
        self.assertEqual(reply.status, 200, reply)
        return client

    def assert_code(self, reply: ClientReply, status: int, errcode: str | None = None) -> None:
        """The answer has this status and code."""
        self.assertEqual((reply.status, reply.errcode), (status, errcode), reply)


class Sessions(ClientApiCase):
    """Logging in and out."""

    async def test_a_user_logs_in_in_each_form_and_gets_a_token_for_the_device(self) -> None:
        client = HttpMatrixClient(self.clients_port)
        for user in ("alice", "@alice:example.com"):
            reply = await client.log_in(user, "password of alice", device_id="D")
            self.assertEqual(reply.json["device_id"], "D")
            who = await client.ask("GET", "/account/whoami")
            self.assertEqual(who.json["user_id"], "@alice:example.com")
            self.assertEqual(who.json["device_id"], "D")
        client.token = None
        old = {"type": "m.login.password", "user": "alice", "password": "password of alice"}
        self.assert_code(await client.ask("POST", "/login", old), 200)

    async def test_what_is_not_right_is_refused(self) -> None:
        client = HttpMatrixClient(self.clients_port)
        self.assert_code(await client.log_in("alice", "wrong"), 403, "M_FORBIDDEN")
        self.assert_code(await client.log_in("nobody", "password of alice"), 403, "M_FORBIDDEN")
        login: dict[str, Any] = {"type": "m.login.password"}
        for more in (
            {},
            {"user": 1, "password": "x"},
            {"user": "alice"},
            {"user": "alice", "password": 1},
            {"identifier": "alice", "password": "x"},
            {"identifier": {"type": "m.id.phone"}, "password": "x"},
            {"user": "alice", "password": "password of alice", "device_id": "x" * 300},
        ):
            reply = await client.ask("POST", "/login", login | more)
            self.assert_code(reply, 400, "M_BAD_JSON")
        for token in ("x", "syn_a_b_c", "syn____", "ä", f"{self.alice.token}0"):
            client.token = token.encode().decode("latin-1")
            reply = await client.ask("GET", "/account/whoami")
            self.assertEqual(reply.status, 401 if token.isascii() else 400)

    async def test_a_token_of_another_user_or_device_cannot_be_made_of_an_own_one(self) -> None:
        assert self.alice.token is not None
        assert self.bob.token is not None
        alice, bob = self.alice.token.split("_"), self.bob.token.split("_")
        for place in (1, 2, 3):
            mixed = list(alice)
            mixed[place] = bob[place]
            client = HttpMatrixClient(self.clients_port, "_".join(mixed))
            reply = await client.ask("GET", "/account/whoami")
            self.assert_code(reply, 401, "M_UNKNOWN_TOKEN")

    async def test_capabilities_name_the_room_versions(self) -> None:
        reply = await self.alice.ask("GET", "/capabilities")
        versions = reply.json["capabilities"]["m.room_versions"]
        self.assertEqual(versions["default"], "11")
        self.assertEqual(versions["available"]["12"], "stable")


class Rooms(ClientApiCase):
    """Creating and changing rooms, and sending."""

    async def test_a_room_is_created_joined_and_written_to(self) -> None:
        room_id = await self.alice.create_room(
            name="N", invite=["@bob:example.com"], room_alias_name="n"
        )
        path = f"/rooms/{quote(room_id)}"
        self.assert_code(await self.carol.ask("POST", f"{path}/join", {}), 403, "M_FORBIDDEN")
        for named in (quote(room_id), quote("#n:example.com", safe="")):
            reply = await self.bob.ask("POST", f"/join/{named}?via=a&via=b", {"reason": "r"})
            self.assertEqual(reply.json, {"room_id": room_id})
        first = await self.bob.say(room_id, "hello", "t1")
        again = await self.bob.say(room_id, "hello", "t1")
        self.assertEqual(first.json, again.json)
        # Where the room was before is not known any more, so the position of a repeated request covers more.
        positions = [each.headers["x-synrepl-position"].split("~") for each in (first, again)]
        self.assertEqual(*(own for _, own in positions))
        second = await self.bob.say(room_id, "hello", "t2")
        self.assertNotEqual(first.json, second.json)
        topic = await self.alice.ask("PUT", f"{path}/state/m.room.topic", {"topic": "T"})
        self.assert_code(topic, 200)
        self.assert_code(
            await self.bob.ask("PUT", f"{path}/state/m.room.topic/", {"topic": "T"}),
            403,
            "M_FORBIDDEN",
        )
        event_id = quote(first.json["event_id"], safe="")
        redaction = await self.bob.ask("PUT", f"{path}/redact/{event_id}/t", {"reason": "r"})
        repeated = await self.bob.ask("PUT", f"{path}/redact/{event_id}/t", {"reason": "r"})
        self.assertEqual(redaction.json, repeated.json)
        self.assert_code(
            await self.bob.ask("PUT", f"{path}/redact/%24none/t9", {}), 404, "M_NOT_FOUND"
        )

    async def test_memberships_change_by_the_endpoints(self) -> None:
        room_id = await self.alice.create_room()
        path, bob = f"/rooms/{quote(room_id)}", {"user_id": "@bob:example.com"}
        for client, action, body, status in (
            (self.bob, "join", {}, 403),
            (self.bob, "invite", bob, 403),
            (self.alice, "invite", bob, 200),
            (self.bob, "join", {}, 200),
            (self.bob, "kick", {"user_id": "@alice:example.com"}, 403),
            (self.alice, "invite", bob, 403),
            (self.bob, "forget", {}, 400),
            (self.alice, "unban", bob, 403),
            (self.alice, "kick", bob, 200),
            (self.alice, "kick", bob, 403),
            (self.alice, "ban", bob, 200),
            (self.bob, "join", {}, 403),
            (self.alice, "unban", bob, 200),
            (self.bob, "forget", {}, 200),
            (self.alice, "leave", {}, 200),
            (self.alice, "leave", {}, 403),
            (self.alice, "kick", {"user_id": "bob"}, 400),
            (self.alice, "kick", {}, 400),
        ):
            reply = await client.ask("POST", f"{path}/{action}", body)
            self.assertEqual(reply.status, status, (action, reply))

    async def test_unknown_rooms_and_aliases_are_not_found(self) -> None:
        for method, path, body in (
            ("PUT", "/rooms/!none:example.com/send/m.room.message/1", {}),
            ("POST", "/rooms/!none:example.com/join", {}),
            ("POST", "/rooms/!none:example.com/leave", {}),
            ("POST", "/rooms/!none:example.com/upgrade", {"new_version": "11"}),
            ("POST", "/join/%23none:example.com", {}),
            ("POST", "/join/!a%00b:example.com", {}),
            ("GET", "/directory/room/%23none:example.com", None),
            ("DELETE", "/directory/room/%23none:example.com", None),
            ("GET", "/rooms/!none:example.com/aliases", None),
        ):
            self.assert_code(await self.alice.ask(method, path, body), 404, "M_NOT_FOUND")

    async def test_aliases_are_added_found_and_removed(self) -> None:
        room_id = await self.alice.create_room(preset="public_chat")
        path = f"/directory/room/{quote('#a:example.com', safe='')}"
        body = {"room_id": room_id}
        self.assert_code(await self.bob.ask("PUT", path, body), 403, "M_FORBIDDEN")
        self.assert_code(await self.alice.ask("PUT", path, body), 200)
        self.assert_code(await self.alice.ask("PUT", path, body), 400, "M_ROOM_IN_USE")
        found = await self.bob.ask("GET", path)
        self.assertEqual(found.json, {"room_id": room_id, "servers": ["example.com"]})
        listed = await self.alice.ask("GET", f"/rooms/{quote(room_id)}/aliases")
        self.assertEqual(listed.json, {"aliases": ["#a:example.com"]})
        self.assert_code(await self.bob.ask("DELETE", path), 403, "M_FORBIDDEN")
        self.assert_code(await self.alice.ask("DELETE", path), 200)
        taken = await self.alice.ask("PUT", "/directory/room/%23a:other", body)
        self.assert_code(taken, 400, "M_INVALID_PARAM")

    async def test_a_room_is_upgraded(self) -> None:
        room_id = await self.alice.create_room(room_version="10", preset="public_chat")
        path = f"/rooms/{quote(room_id)}/upgrade"
        reply = await self.alice.ask("POST", path, {"new_version": "12"})
        self.assert_code(reply, 200)
        self.assert_code(
            await self.alice.ask("POST", path, {"new_version": "99"}),
            400,
            "M_UNSUPPORTED_ROOM_VERSION",
        )
        join = await self.bob.ask("POST", f"/join/{quote(reply.json['replacement_room'])}", {})
        self.assert_code(join, 200)

    async def test_bad_rooms_and_events_are_refused_by_code(self) -> None:
        for body, code in (
            ({"room_version": "99"}, "M_UNSUPPORTED_ROOM_VERSION"),
            ({"preset": "none"}, "M_BAD_JSON"),
            ({"invite": ["bob"]}, "M_INVALID_PARAM"),
            ({"name": "x" * 70_000}, "M_BAD_JSON"),
            ({"initial_state": [{"type": "a\0", "content": {}}]}, "M_BAD_JSON"),
            ({"power_level_content_override": {"users": {}}, "name": "x"}, "M_FORBIDDEN"),
        ):
            reply = await self.alice.ask("POST", "/createRoom", body)
            self.assertEqual(reply.errcode, code, reply)
        room_id = await self.alice.create_room()
        for body in ({"n": 1.5}, {"n": 2**60}, {"n": 2**70}, {"body": "x" * 70_000}):
            path = f"/rooms/{quote(room_id)}/send/m.room.message/{hash(str(body))}"
            self.assert_code(await self.alice.ask("PUT", path, body), 400, "M_BAD_JSON")
        long = await self.alice.say(room_id, "x", "t" * 300)
        self.assert_code(long, 400, "M_INVALID_PARAM")

    async def test_what_is_absent_has_the_answers_of_the_specification(self) -> None:
        for method, path, status in (
            ("POST", "/keys/upload", 200),
            ("POST", "/keys/query", 200),
            ("POST", "/keys/claim", 200),
            ("GET", "/keys/changes", 200),
            ("GET", "/room_keys/version", 404),
            ("GET", "/pushrules/", 200),
            ("GET", "/pushers", 200),
            ("GET", "/voip/turnServer", 200),
            ("GET", "/thirdparty/protocols", 200),
            ("GET", "/devices", 200),
            ("GET", "/devices/other", 404),
            ("GET", "/profile/@bob:example.com", 200),
            ("GET", "/profile/bob", 400),
            ("PUT", "/profile/@alice:example.com/displayname", 403),
            ("POST", "/register", 403),
            ("GET", "/publicRooms", 200),
            ("GET", "/_matrix/client/v1/media/config", 200),
            ("POST", "/_matrix/media/v3/upload", 403),
            ("GET", "/_matrix/client/v1/media/download/example.com/abc", 404),
            ("GET", "/nothing", 404),
            ("PATCH", "/devices", 405),
        ):
            body = {} if method in ("POST", "PUT") else None
            reply = await self.alice.ask(method, path, body)
            self.assertEqual(reply.status, status, (path, reply))

    async def test_status_and_metrics_count_the_requests(self) -> None:
        room_id = quote(await self.alice.create_room())
        await self.alice.ask("GET", f"/rooms/{room_id}/members")
        running = self.master_process.running
        assert running.http is not None
        url = f"http://127.0.0.1:{running.http.port}"
        status = json.loads(await deferToThread(_read, f"{url}/status"))
        self.assertGreaterEqual(status["client_api"]["answered"]["200"], 4)
        metrics = (await deferToThread(_read, f"{url}/metrics")).decode()
        self.assertIn('synrepl_client_requests_answered_total{status="200"}', metrics)
        name = "synrepl_client_plain_reads_total"
        self.assertIn(f'{name}{{outcome="plain",request="members"}} 1.0', metrics)


class FuzzedBodies(ClientApiCase):
    """Bodies that are JSON of any kind."""

    client_api = ", rate_limits: {requests: {per_second: 10000, burst: 100000}, writes: {per_second: 10000, burst: 100000}}"

    async def test_no_body_causes_an_internal_error(self) -> None:
        room_id = quote(await self.alice.create_room())
        rng = Random(5)
        paths = (
            ("POST", "/createRoom"),
            ("PUT", f"/rooms/{room_id}/send/m.room.message/%s"),
            ("PUT", f"/rooms/{room_id}/state/m.room.power_levels"),
            ("PUT", f"/rooms/{room_id}/state/m.room.member/@bob:example.com"),
            ("PUT", f"/rooms/{room_id}/state/m.room.join_rules"),
            ("PUT", f"/rooms/{room_id}/redact/%24x/%s"),
            ("POST", f"/rooms/{room_id}/invite"),
            ("POST", f"/rooms/{room_id}/join"),
            ("POST", f"/rooms/{room_id}/upgrade"),
            ("PUT", "/directory/room/%%23a:example.com"),
            ("POST", "/login"),
        )
        for count, (_, (method, path)) in enumerate(product(range(25), paths)):
            target = path.replace("%s", str(count)).replace("%%", "%")
            reply = await self.alice.ask(method, target, json.dumps(random_json(rng)).encode())
            self.assertLess(reply.status, 500, (path, reply))


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())
