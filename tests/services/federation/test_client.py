"""The endpoints of other servers, over real TLS, with answers that a real server gave."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Any
from urllib.parse import unquote

from twisted.internet.defer import Deferred

from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.core.slices import Slices
from synrepl.federation.answers import MAX_SERVERS
from synrepl.federation.errors import (
    AnswerTooLarge,
    BadFederationAnswer,
    DestinationAway,
    RequestRefusedByServer,
)
from synrepl.rooms import Event, check_on_receipt, event_of, keys_of, parse_event, room_version
from synrepl.services.federation.client import FederationClient
from tests.adapters.federation.transport_case import ORIGIN, TransportCase
from tests.federation.recordings import VERSIONS, answer, keys, recording

ROOM, USER = "!a:b.example", "@u:origin.example"

#: Answers that are no JSON objects.
NO_OBJECTS = (b"", b"[]", b"null", b"<html>", b'{"a":', b"{}x", b"[" * 200_000, b'{"a":' * 200_000)


class ClientCase(TransportCase):
    """A client, and a server whose answers a test decides."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.requests: list[HttpRequest] = []
        self.answers: list[HttpAnswer] = []
        self.server = f"localhost:{self.serve(self.answer)}"
        self.asking = FederationClient(self.transport, ORIGIN, Slices(self.scheduler))

    def answer(self, request: HttpRequest) -> HttpAnswer:
        self.requests.append(request)
        return self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)

    async def ask(self, asked: Awaitable[Any], *answers: HttpAnswer | bytes) -> Any:
        """What a method returns when the server gives these answers."""
        self.requests.clear()
        self.answers = [
            each if isinstance(each, HttpAnswer) else HttpAnswer(200, each) for each in answers
        ]

        async def run() -> Any:
            return await asked

        return await self.passing(Deferred.fromCoroutine(run()))

    def asked(self) -> tuple[str, str, dict[str, str], Any]:
        """Method, path, query and content of the last request."""
        request = self.requests[-1]
        content = json.loads(request.body) if request.body else None
        path = request.uri.partition("?")[0]
        return request.method, unquote(path), dict(request.query), content

    def own_event(self, version: str = "11") -> Event:
        """An event of this server; not signed, since nobody looks."""
        fields = {
            "type": "m.room.member",
            "room_id": ROOM,
            "sender": USER,
            "state_key": USER,
            "content": {"membership": "join"},
            "depth": 1,
            "origin_server_ts": 1,
            "prev_events": [],
            "auth_events": [],
        }
        return event_of(fields, room_version(version))

    async def refused(self, asked: Any, *bodies: bytes) -> None:
        """Each body is refused; ``asked`` makes the call."""
        for body in bodies:
            with self.subTest(body[:60]), self.assertRaises((BadFederationAnswer, AnswerTooLarge)):
                await self.ask(asked(), body)


class RecordedAnswers(ClientCase):
    """Every recorded answer is read, and its events are what they are signed to be."""

    async def test_make_join(self) -> None:
        for version in VERSIONS:
            recorded = recording(version, "inbound/make_join")["body"]
            event = recorded["event"]
            template = await self.ask(
                self.asking.make_membership(
                    self.server, "join", event["room_id"], event["sender"], ["10", "11", "12"]
                ),
                answer(version, "make_join"),
            )
            self.assertEqual(template, (version, event))
            method, path, _, _ = self.asked()
            expected = f"/_matrix/federation/v1/make_join/{event['room_id']}/{event['sender']}"
            self.assertEqual((method, path), ("GET", expected))
            self.assertIn("?ver=10&ver=11&ver=12", self.requests[-1].uri)

    async def test_send_join(self) -> None:
        for version in VERSIONS:
            for name in ("send_join-full", "send_join-partial"):
                await self.check_send_join(version, name)

    async def check_send_join(self, version: str, name: str) -> None:
        recorded = recording(version, f"inbound/{name}")
        event = parse_event(json.dumps(recorded["request"]).encode(), room_version(version))
        omits = name.endswith("partial")
        asked = self.asking.send_join(self.server, event, omit_members=omits)
        with await self.ask(asked, answer(version, name)) as found:
            state, chain = list(found.state()), list(found.auth_chain())
            again = list(found.state())
            self.assertEqual(found.members_omitted, omits)
            servers = recorded["body"].get("servers_in_room")
            self.assertEqual(found.servers_in_room, None if servers is None else tuple(servers))
            self.assertEqual(json.loads(found.event), recorded["body"]["event"])
        self.assertEqual(list(map(json.loads, state)), recorded["body"]["state"])
        self.assertEqual(list(map(json.loads, chain)), recorded["body"]["auth_chain"])
        self.assertEqual(again, state)
        known = keys_of(keys(version))
        for raw in (*state, *chain):
            result = check_on_receipt(raw, room_version(version), known)
            self.assertIsNone(result.refusal)
        method, path, query, content = self.asked()
        expected = f"/_matrix/federation/v2/send_join/{event.room_id}/{event.event_id}"
        self.assertEqual((method, path, content), ("PUT", expected, recorded["request"]))
        self.assertEqual(query, {"omit_members": "true"} if omits else {})

    async def test_states(self) -> None:
        for version in VERSIONS:
            recorded = recording(version, "inbound/state")["body"]
            asked = self.asking.state(self.server, ROOM, "$e")
            with await self.ask(asked, answer(version, "state")) as found:
                self.assertEqual(list(map(json.loads, found.state())), recorded["pdus"])
                self.assertEqual(list(map(json.loads, found.auth_chain())), recorded["auth_chain"])
            self.assertEqual(
                self.asked()[1:3], (f"/_matrix/federation/v1/state/{ROOM}", {"event_id": "$e"})
            )
            recorded = recording(version, "inbound/state_ids")["body"]
            ids = await self.ask(
                self.asking.state_ids(self.server, ROOM, "$e"), answer(version, "state_ids")
            )
            self.assertEqual(ids.state, tuple(recorded["pdu_ids"]))
            self.assertEqual(ids.auth_chain, tuple(recorded["auth_chain_ids"]))

    async def test_events(self) -> None:
        client, server = self.asking, self.server
        for version in VERSIONS:
            for name, member, asked in (
                ("event_auth", "auth_chain", client.event_auth(server, ROOM, "$e")),
                ("backfill", "pdus", client.backfill(server, ROOM, ["$e", "$f"], 10)),
                (
                    "get_missing_events",
                    "events",
                    client.missing_events(server, ROOM, ["$e"], ["$f"], 10, 5),
                ),
            ):
                found = await self.ask(asked, answer(version, name))
                recorded = recording(version, f"inbound/{name}")["body"][member]
                self.assertEqual(list(map(json.loads, found)), recorded)
            content = self.asked()[3]
            wanted = {"earliest_events": ["$e"], "latest_events": ["$f"], "limit": 10}
            self.assertEqual(content, {**wanted, "min_depth": 5})
            found = await self.ask(client.event(server, "$e"), answer(version, "event"))
            (event,) = recording(version, "inbound/event")["body"]["pdus"]
            self.assertEqual(json.loads(found), event)

    async def test_transactions(self) -> None:
        for version in VERSIONS:
            recorded = recording(version, "inbound/send-answer")
            pdus = [json.dumps(each).encode() for each in recorded["sent"]]
            result = await self.ask(
                self.asking.send_transaction(self.server, "txn/1", 5, pdus, [b'{"edu_type": "x"}']),
                answer(version, "send-answer"),
            )
            self.assertEqual(result, dict.fromkeys(recorded["body"]["pdus"]))
            method, path, _, content = self.asked()
            self.assertEqual((method, path), ("PUT", "/_matrix/federation/v1/send/txn/1"))
            self.assertIn("/send/txn%2F1", self.requests[-1].uri)
            self.assertEqual(content["pdus"], recorded["sent"])
            self.assertEqual((content["origin"], content["origin_server_ts"]), (ORIGIN, 5))

    async def test_refusals(self) -> None:
        for version in VERSIONS:
            for recorded in recording(version, "inbound/refusals").values():
                with self.assertRaises(RequestRefusedByServer) as caught:
                    refusal = json_answer(recorded["body"], recorded["status"])
                    await self.ask(self.asking.event(self.server, "$e"), refusal)
                error = caught.exception
                self.assertEqual(error.status, recorded["status"])
                self.assertEqual(error.errcode, recorded["body"].get("errcode", "M_UNKNOWN"))
                self.assertEqual(error.members, recorded["body"])
                self.assertIn(f"{self.server} refused GET", str(error))


class OtherAnswers(ClientCase):
    async def test_knocks_and_leaves(self) -> None:
        event = self.own_event()
        state = await self.ask(
            self.asking.send_knock(self.server, event), b'{"knock_room_state":[{"type":"x"}]}'
        )
        self.assertEqual(state, (b'{"type":"x"}',))
        await self.ask(self.asking.send_leave(self.server, event), b"{}")
        self.assertEqual(self.asked()[0], "PUT")
        self.assertIn("/v2/send_leave/", self.requests[-1].uri)

    async def test_version_1_of_endpoints_of_older_servers(self) -> None:
        event = self.own_event()
        missing = json_answer({"errcode": "M_UNRECOGNIZED", "error": "?"}, 404)
        asked = self.asking.send_join(self.server, event, omit_members=False)
        old = b'[200, {"state":[{"a":1}],"auth_chain":[]}]'
        with await self.ask(asked, missing, old) as found:
            self.assertEqual(list(found.state()), [b'{"a":1}'])
            self.assertEqual((found.event, found.members_omitted), (None, False))
        uris = [request.uri for request in self.requests]
        self.assertIn("/v2/send_join", uris[0])
        self.assertIn("/v1/send_join", uris[1])
        await self.ask(self.asking.send_leave(self.server, event), missing, b"[200, {}]")

    async def test_a_room_that_is_not_found_is_not_taken_for_a_missing_endpoint(self) -> None:
        missing = json_answer({"errcode": "M_NOT_FOUND", "error": "?"}, 404)
        with self.assertRaises(RequestRefusedByServer):
            await self.ask(self.asking.send_leave(self.server, self.own_event()), missing)
        self.assertEqual(len(self.requests), 1)

    async def test_invites(self) -> None:
        event, state = self.own_event(), [{"type": "m.room.name", "content": {}}]
        signed = await self.ask(
            self.asking.invite(self.server, event, "11", state), b'{"event":{"signed":1}}'
        )
        self.assertEqual(signed, b'{"signed":1}')
        _, _, _, content = self.asked()
        self.assertEqual(content["event"], event.fields)
        self.assertEqual((content["room_version"], content["invite_room_state"]), ("11", state))

    async def test_queries(self) -> None:
        found = await self.ask(
            self.asking.query_directory(self.server, "#a:b.example"),
            b'{"room_id":"!r:b.example","servers":["a.example","a.example","bad name",7]}',
        )
        self.assertEqual(found, ("!r:b.example", ("a.example",)))
        profile = await self.ask(
            self.asking.query_profile(self.server, USER, "displayname"), b'{"displayname":"A"}'
        )
        self.assertEqual(profile, {"displayname": "A"})
        self.assertEqual(self.asked()[2], {"user_id": USER, "field": "displayname"})
        devices = {"user_id": USER, "stream_id": 5, "devices": [{"device_id": "A", "keys": {}}]}
        found = await self.ask(
            self.asking.user_devices(self.server, USER), json.dumps(devices).encode()
        )
        self.assertEqual(found, devices)

    async def test_keys(self) -> None:
        document = b'{"server_name":"x"}'
        self.assertEqual(await self.ask(self.asking.server_keys(self.server), document), document)
        found = await self.ask(
            self.asking.query_keys(self.server, {"a.example": {"ed25519:a": 5}}),
            b'{"server_keys":[{"a":1},{"b":2}]}',
        )
        self.assertEqual(found, (b'{"a":1}', b'{"b":2}'))
        wanted = {"a.example": {"ed25519:a": {"minimum_valid_until_ts": 5}}}
        self.assertEqual(self.asked()[3], {"server_keys": wanted})
        self.assertIsNone(self.requests[-1].header("Authorization"))

    async def test_errors_in_transactions(self) -> None:
        asked = self.asking.send_transaction(self.server, "1", 5, [], [])
        result = await self.ask(asked, b'{"pdus":{"$a":{},"$b":{"error":"no\\n\\u0000"},"$c":7}}')
        self.assertEqual(result, {"$a": None, "$b": "no �", "$c": None})


class HostileAnswers(ClientCase):
    async def test_what_is_no_object(self) -> None:
        client, server, event = self.asking, self.server, self.own_event()
        for asked in (
            lambda: client.make_membership(server, "join", ROOM, USER),
            lambda: client.send_join(server, event, omit_members=True),
            lambda: client.send_knock(server, event),
            lambda: client.invite(server, event, "11", []),
            lambda: client.state_ids(server, ROOM, "$e"),
            lambda: client.state(server, ROOM, "$e"),
            lambda: client.event(server, "$e"),
            lambda: client.event_auth(server, ROOM, "$e"),
            lambda: client.backfill(server, ROOM, ["$e"], 5),
            lambda: client.missing_events(server, ROOM, [], [], 5, 0),
            lambda: client.send_transaction(server, "1", 1, [], []),
            lambda: client.query_directory(server, "#a:b"),
            lambda: client.query_profile(server, USER),
            lambda: client.user_devices(server, USER),
            lambda: client.query_keys(server, {}),
        ):
            await self.refused(asked, *NO_OBJECTS)

    async def test_templates_of_something_else(self) -> None:
        content = {"membership": "join"}
        right = {"type": "m.room.member", "room_id": ROOM, "sender": USER, "state_key": USER}
        right["content"] = content
        wrong = [
            {"type": "m.room.power_levels"},
            {"room_id": "!other:b.example"},
            {"sender": "@admin:origin.example"},
            {"state_key": "@admin:origin.example"},
            {"content": {"membership": "leave"}},
            {"content": []},
        ]
        bodies = [json.dumps({"event": right | each}).encode() for each in wrong]
        bodies += [b'{"event":[]}', json.dumps({"event": right, "room_version": 11}).encode()]
        await self.refused(
            lambda: self.asking.make_membership(self.server, "join", ROOM, USER), *bodies
        )
        template = await self.ask(
            self.asking.make_membership(self.server, "join", ROOM, USER),
            json.dumps({"event": right}).encode(),
        )
        self.assertEqual(template.room_version, "1")

    async def test_joins_without_what_they_must_have(self) -> None:
        full = {"state": [], "auth_chain": []}
        await self.refused(
            lambda: self.asking.send_join(self.server, self.own_event(), omit_members=True),
            b'{"state":[]}',
            b'{"auth_chain":[]}',
            b'{"state":{},"auth_chain":[]}',
            b'{"state":[],"auth_chain":[],"state":5}',
            json.dumps({**full, "members_omitted": "yes"}).encode(),
            json.dumps({**full, "event": 5}).encode(),
            json.dumps({**full, "state": [{}], "auth_chain": None}).encode(),
        )

    async def test_lists_of_100_000_servers(self) -> None:
        names = [f"{number}.example" for number in range(100_000)]
        self.assertGreater(len(names), MAX_SERVERS)
        body = json.dumps({"state": [], "auth_chain": [], "servers_in_room": names}).encode()
        await self.refused(
            lambda: self.asking.send_join(self.server, self.own_event(), omit_members=True), body
        )

    async def test_servers_that_cannot_be(self) -> None:
        names = [
            "a.example",
            "a.example",
            "b:c:d",
            "x" * 300,
            "\0",
            5,
            None,
            ["b.example"],
            "[::1]",
        ]
        body = json.dumps({"state": [], "auth_chain": [], "servers_in_room": names}).encode()
        asked = self.asking.send_join(self.server, self.own_event(), omit_members=True)
        with await self.ask(asked, body) as found:
            self.assertEqual(found.servers_in_room, ("a.example", "[::1]"))

    async def test_states_of_what_are_no_event_ids(self) -> None:
        await self.refused(
            lambda: self.asking.state_ids(self.server, ROOM, "$e"),
            b'{"pdu_ids":["$a",5],"auth_chain_ids":[]}',
            b'{"pdu_ids":["!a"],"auth_chain_ids":[]}',
            b'{"pdu_ids":["$' + b"a" * 600 + b'"],"auth_chain_ids":[]}',
            b'{"pdu_ids":[]}',
        )

    async def test_more_events_than_one(self) -> None:
        await self.refused(
            lambda: self.asking.event(self.server, "$e"), b'{"pdus":[]}', b'{"pdus":[{},{}]}'
        )

    async def test_devices_of_somebody_else(self) -> None:
        right = {"user_id": USER, "stream_id": 5, "devices": []}
        wrong: list[dict[str, Any]] = [
            {"user_id": "@other:b.example"},
            {"stream_id": "5"},
            {"stream_id": True},
            {"devices": {}},
            {"devices": [5]},
            {"devices": [{"device_id": 5, "keys": {}}]},
            {"devices": [{"device_id": "A"}]},
        ]
        bodies = [json.dumps(right | each).encode() for each in wrong]
        await self.refused(lambda: self.asking.user_devices(self.server, USER), *bodies)

    async def test_refusals_that_say_nothing(self) -> None:
        for body in (b"", b"<html>", b"[]", b'{"errcode":5,"error":[]}', b"x" * 2_000_000):
            with self.assertRaises(RequestRefusedByServer) as caught:
                refusal = HttpAnswer(502, body)
                await self.ask(self.asking.event(self.server, "$e"), refusal)
            self.assertEqual(
                (caught.exception.status, caught.exception.errcode), (502, "M_UNKNOWN")
            )

    async def test_refusals_that_say_too_much(self) -> None:
        long = {"errcode": "M_" + "X" * 5000, "error": "a\n\x1b[31m" + "b" * 5000}
        with self.assertRaises(RequestRefusedByServer) as caught:
            await self.ask(self.asking.event(self.server, "$e"), json_answer(long, 403))
        self.assertLess(len(str(caught.exception)), 600)
        self.assertTrue(str(caught.exception).isprintable())

    async def test_nothing_is_left_of_an_answer_that_is_refused(self) -> None:
        body = b'{"state":[' + b'{"a":"' + b"x" * 1_000_000 + b'"}'
        with self.assertRaises(BadFederationAnswer):
            asked = self.asking.send_join(self.server, self.own_event(), omit_members=True)
            await self.ask(asked, body)
        self.assertEqual(self.client.usage.in_files, 0)
        self.assertGreater(self.client.usage.total, 1_000_000)

    async def test_an_endpoint_with_small_answers_takes_no_large_one(self) -> None:
        with self.assertRaises(AnswerTooLarge):
            await self.ask(self.asking.server_keys(self.server), b" " * 2_000_000)
        with self.assertRaises(AnswerTooLarge):
            asked = self.asking.make_membership(self.server, "join", ROOM, USER)
            await self.ask(asked, b" " * 2_000_000)

    async def test_a_server_that_is_away(self) -> None:
        with self.assertRaises(DestinationAway):
            await self.ask(self.asking.event("localhost:1", "$e"))
