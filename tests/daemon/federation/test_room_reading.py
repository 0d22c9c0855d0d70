"""Other servers ask for states, events and history of rooms that they are in."""

from __future__ import annotations

import json
from typing import Any

from twisted.web.client import ResponseFailed

from simulator.federation.hosted_room import HostedRoom
from simulator.federation.pure_server import PureServer
from synrepl.rooms import parse_event, room_version
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.federation.resident import state_streams
from synrepl.storage.rooms.states.state_groups import CorruptState
from tests.daemon.federation.listener_case import FEDERATION, FederationListenerCase
from tests.services.federation.inbound_case import ALICE, BOB, CAROL, HERE, OTHER

_V10 = room_version("10")


class RoomReading(FederationListenerCase):
    """A room of this server in which Bob of another one is, too."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.room_id = await self.create(name="a room")
        self.room: HostedRoom = await self.remote.join(self.room_id, BOB, HERE)

    def ids(self, events: list[dict[str, Any]]) -> set[str]:
        """The IDs of events."""
        return {parse_event(json.dumps(each).encode(), _V10).event_id for each in events}

    async def test_the_state_before_an_event(self) -> None:
        topic = await self.send(self.room_id, "m.room.topic", {"topic": "x"}, "")
        after = await self.say_here(self.room_id)
        before = set(self.room.room.current_state().values())
        for event_id, expected in ((topic, before), (after, before | {topic})):
            ids = (await self.get(f"v1/state_ids/{self.room_id}", event_id=event_id)).json
            self.assertEqual(set(ids["pdu_ids"]), expected)
            self.assertEqual(len(ids["pdu_ids"]), len(expected))
            state = (await self.get(f"v1/state/{self.room_id}", event_id=event_id)).json
            self.assertEqual(self.ids(state["pdus"]), expected)
            self.assertEqual(self.ids(state["auth_chain"]), set(ids["auth_chain_ids"]))
            chain = {each.event_id for each in self.room.auth_chain(self.room.current_state())}
            self.assertEqual(set(ids["auth_chain_ids"]), chain)

    async def test_states_come_in_pages(self) -> None:
        self.patch(state_streams, "PAGE", 3)
        message = await self.say_here(self.room_id)
        state = (await self.get(f"v1/state/{self.room_id}", event_id=message)).json
        self.assertEqual(self.ids(state["pdus"]), set(self.room.room.current_state().values()))
        join = await self.remote.join(self.room_id, f"@dora:{self.remote.name}", HERE)
        self.assertEqual(len(join.room.current_state()), len(state["pdus"]) + 1)

    async def test_a_damaged_state_breaks_the_answer_off(self) -> None:
        message = await self.say_here(self.room_id)
        self.sql(
            "DELETE FROM synrepl._state_line v USING synrepl._room_events e"
            " WHERE v.event_no = e.event_no AND e.type_no = (SELECT type_no"
            "  FROM synrepl._event_types WHERE type = 'm.room.name')",
        )
        with self.assertRaises(ResponseFailed):
            await self.get(f"v1/state/{self.room_id}", event_id=message)
        (failure,) = self.flushLoggedErrors(CorruptState)
        self.assertIn("digest", str(failure.value))

    async def test_single_events_and_their_auth_chains(self) -> None:
        message = await self.say_here(self.room_id)
        answer = (await self.get(f"v1/event/{message}")).json
        self.assertEqual(answer["origin"], HERE)
        self.assertEqual(self.ids(answer["pdus"]), {message})
        chain = (await self.get(f"v1/event_auth/{self.room_id}/{message}")).json["auth_chain"]
        cited = set(answer["pdus"][0]["auth_events"])
        self.assertLessEqual(cited, self.ids(chain))

    async def test_backfill_and_missing_events(self) -> None:
        sent = [await self.say_here(self.room_id, f"{number}") for number in range(5)]
        found = await self.ask(
            "GET",
            f"{FEDERATION}/v1/backfill/{self.room_id}?v={sent[-1]}&v=%24unknown&limit=3",
        )
        self.assertEqual(self.ids(found.json["pdus"]), set(sent[-3:]))
        asked = {"earliest_events": sent[:1], "latest_events": sent[-1:], "limit": 10}
        uri = f"{FEDERATION}/v1/get_missing_events/{self.room_id}"
        found = await self.ask("POST", uri, asked)
        listed = [self.ids([each]).pop() for each in found.json["events"]]
        self.assertEqual(listed, sent[1:-1])

    async def test_history_that_a_server_may_not_see_is_redacted(self) -> None:
        await self.send(
            self.room_id, "m.room.history_visibility", {"history_visibility": "joined"}, ""
        )
        secret = await self.say_here(self.room_id, "before Carol came")
        await self.get(f"v1/make_join/{self.room_id}/{CAROL}", OTHER, ver="10")
        await PureServer(OTHER, self.federation).join(self.room_id, CAROL, HERE)
        for origin, content in ((self.remote.name, 2), (OTHER, 0)):
            event = (await self.get(f"v1/event/{secret}", origin)).json["pdus"][0]
            self.assertEqual(len(event["content"]), content, origin)
            self.assertEqual(self.ids([event]), {secret})
            uri = f"{FEDERATION}/v1/backfill/{self.room_id}?v={secret}&limit=1"
            (event,) = (await self.ask("GET", uri, origin=origin)).json["pdus"]
            self.assertEqual(len(event["content"]), content, origin)

    async def test_events_close_to_a_time(self) -> None:
        sent = [await self.say_here(self.room_id, f"{number}") for number in range(4)]
        times = [
            self.sql("SELECT origin_server_ts FROM synrepl._room_events WHERE event_id = %s", each)
            for each in sent
        ]
        path = f"v1/timestamp_to_event/{self.room_id}"
        forwards = (await self.get(path, ts=str(times[1]), dir="f")).json
        self.assertEqual(forwards["origin_server_ts"], times[1])
        backwards = (await self.get(path, ts=str(times[-1] + 10**9), dir="b")).json
        self.assertEqual(backwards["event_id"], sent[-1])
        late = await self.get(path, ts=str(times[-1] + 10**9), dir="f")
        self.assert_refused(late, 404, "M_NOT_FOUND")

    async def test_servers_that_are_not_in_the_room_get_nothing(self) -> None:
        message = await self.say_here(self.room_id)
        room = self.room_id
        paths = [
            f"v1/state/{room}?event_id={message}",
            f"v1/state_ids/{room}?event_id={message}",
            f"v1/event/{message}",
            f"v1/event_auth/{room}/{message}",
            f"v1/backfill/{room}?v={message}",
            f"v1/timestamp_to_event/{room}?ts=1",
        ]
        for path in paths:
            answer = await self.ask("GET", f"{FEDERATION}/{path}", origin=OTHER)
            self.assert_refused(answer, 403, "M_FORBIDDEN")
        asked = {"earliest_events": [], "latest_events": [message]}
        uri = f"{FEDERATION}/v1/get_missing_events/{room}"
        self.assert_refused(await self.ask("POST", uri, asked, OTHER), 403, "M_FORBIDDEN")

    async def test_what_is_not_here_is_not_found(self) -> None:
        other = await self.create()
        elsewhere = await self.say_here(other)
        room = self.room_id
        for path in (
            f"v1/state/{room}?event_id=%24none",
            f"v1/state_ids/{room}?event_id={elsewhere}",
            "v1/event/%24none",
            f"v1/event_auth/{room}/%24none",
            "v1/backfill/!none:here.test?v=%24x",
            "v1/state_ids/!none:here.test?event_id=%24x",
            "v1/hierarchy/!none:here.test",
            "v1/query/directory?room_alias=%23none%3Ahere.test",
            f"v1/query/profile?user_id={CAROL}",
            f"v1/user/devices/{CAROL}",
        ):
            answer = await self.ask("GET", f"{FEDERATION}/{path}")
            self.assert_refused(answer, 404, "M_NOT_FOUND")

    async def test_malformed_requests_are_refused(self) -> None:
        room = self.room_id
        for path in (
            f"v1/state/{room}",
            f"v1/backfill/{room}?v=x&limit=many",
            f"v1/timestamp_to_event/{room}?ts=-1",
            f"v1/timestamp_to_event/{room}?ts=1&dir=x",
        ):
            answer = await self.ask("GET", f"{FEDERATION}/{path}")
            self.assert_refused(answer, 400, "M_INVALID_PARAM")
        uri = f"{FEDERATION}/v1/get_missing_events/{room}"
        for asked in ({}, {"earliest_events": 3, "latest_events": []}, {"latest_events": [1]}):
            self.assert_refused(await self.ask("POST", uri, asked), 400, "M_BAD_JSON")
        many = {"earliest_events": [], "latest_events": [f"$e{number}" for number in range(500)]}
        self.assert_refused(await self.ask("POST", uri, many), 400, "M_INVALID_PARAM")

    async def test_users_and_aliases_of_this_server(self) -> None:
        alias = f"#room:{HERE}"
        await self.here.aliases.add(ClientIdentity(ALICE, "A"), alias, self.room_id)
        found = (await self.get("v1/query/directory", room_alias=alias)).json
        self.assertEqual(found, {"room_id": self.room_id, "servers": [HERE, self.remote.name]})
        self.assertEqual((await self.get("v1/query/profile", user_id=ALICE)).json, {})
        devices = (await self.get(f"v1/user/devices/{ALICE}")).json
        self.assertEqual(devices, {"user_id": ALICE, "stream_id": 0, "devices": []})
        keys = await self.ask("POST", f"{FEDERATION}/v1/user/keys/query", {"device_keys": {}})
        self.assertEqual(keys.json, {"device_keys": {}})
        rooms = await self.get("v1/publicRooms")
        self.assertEqual(rooms.json, {"chunk": [], "total_room_count_estimate": 0})

    async def test_a_partial_room_refuses_what_depends_on_its_state(self) -> None:
        own, room = await self.say_here(self.room_id), self.room_id
        bobs = self.say(self.room)
        await self.remote.outgoing.send(HERE)
        self.sql(
            "INSERT INTO synrepl._partial_rooms (room_no, epoch, join_event_id, joined_via)"
            " SELECT room_no, epoch, '$x', 'remote.test' FROM synrepl._rooms"
        )
        partial = "ORG.MATRIX.MSC3895_UNABLE_DUE_TO_PARTIAL_STATE"
        for path, errcode in (
            (f"v1/state/{room}?event_id={own}", partial),
            (f"v1/state_ids/{room}?event_id={own}", partial),
            (f"v1/event_auth/{room}/{bobs.event_id}", partial),
            (f"v1/event/{bobs.event_id}", partial),
        ):
            answer = await self.ask("GET", f"{FEDERATION}/{path}")
            self.assert_refused(answer, 403, errcode)
        for membership in ("join", "knock", "leave"):
            answer = await self.get(f"v1/make_{membership}/{room}/{BOB}", ver="10")
            self.assert_refused(answer, 404, "M_NOT_FOUND")
        for path in (f"v1/event_auth/{room}/{own}", f"v1/event/{own}", f"v1/backfill/{room}"):
            self.assertEqual((await self.get(path)).status, 200, path)
        asked = {"earliest_events": [], "latest_events": [own]}
        uri = f"{FEDERATION}/v1/get_missing_events/{room}"
        self.assertEqual((await self.ask("POST", uri, asked)).status, 200)
