"""Users of this server are invited by other servers, into rooms that are known here and into others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from simulator.federation.hosted_room import HostedRoom
from synrepl.positions.vector import PositionVector
from synrepl.rooms import Event, canonical_json
from synrepl.services.rooms.timelines.room_tails import RoomTails
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.services.rooms.timelines.updates import RoomsUpdate, TimelineReader
from tests.daemon.federation.listener_case import (
    FEDERATION,
    FederationListenerCase,
    ServerAnswer,
)
from tests.services.federation.inbound_case import ALICE, BOB, HERE, OTHER, REMOTE

DORA = f"@dora:{HERE}"

_SHOWN = [
    {"type": "m.room.name", "state_key": "", "sender": BOB, "content": {"name": "a room"}},
    {
        "type": "m.room.join_rules",
        "state_key": "",
        "sender": BOB,
        "content": {"join_rule": "invite"},
        "origin_server_ts": 3,
        "event_id": "$shown",
    },
    {"type": "m.room.topic"},
    "no event",
]


class Invites(FederationListenerCase):
    """A room of another server."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        clock = self.one.process.scheduler
        self.timelines = Timelines(self.database, clock, RoomTails(clock, self.database))
        self.room = self.remote.create_room("10", BOB, name="far", join_rule="invite")

    def invited(self, user_id: str = DORA, room: HostedRoom | None = None) -> Event:
        """An event by which Bob invites a user."""
        room = room or self.room
        content = {"membership": "invite"}
        return self.remote.send(room.room_id, "m.room.member", BOB, content, user_id)

    async def invite(
        self,
        event: Event,
        origin: str = REMOTE,
        /,
        *,
        room_id: str | None = None,
        event_id: str | None = None,
        **members: Any,
    ) -> ServerAnswer:
        """Send an invite."""
        content = {
            "event": event.fields,
            "room_version": event.version.name,
            "invite_room_state": _SHOWN,
            **members,
        }
        path = f"{quote(room_id or event.room_id)}/{quote(event_id or event.event_id)}"
        return await self.ask("PUT", f"{FEDERATION}/v2/invite/{path}", content, origin)

    def newest(self) -> PositionVector:
        """A vector that covers all events."""
        return PositionVector(
            linear=self.sql("SELECT coalesce(max(stream_id), 0) FROM synrepl.events")
        )

    async def synced(self, since: PositionVector | None = None, user_id: str = DORA) -> RoomsUpdate:
        """What a client of a user gets."""
        reader = TimelineReader(user_id, "D")
        if since is None:
            return await self.timelines.initial(reader, self.newest())
        return await self.timelines.since(reader, since, self.newest())

    def states(self, update: RoomsUpdate) -> Mapping[str, dict[str, Any]]:
        """What is shown of the rooms of an update that the user is invited to: contents by type."""
        return {
            room_id: {e["type"]: e["content"] for e in map(json.loads, room.state)}
            for room_id, room in update.invited.items()
        }

    async def test_an_invite_is_signed_and_shown_to_clients_with_what_the_server_shows(
        self,
    ) -> None:
        before = self.newest()
        event = self.invited()
        answer = await self.invite(event)
        self.assertEqual(answer.status, 200, answer.body)
        self.assertEqual(set(answer.json["event"]["signatures"]), {REMOTE, HERE})
        expected = {
            self.room.room_id: {
                "m.room.name": {"name": "a room"},
                "m.room.join_rules": {"join_rule": "invite"},
                "m.room.member": {"membership": "invite"},
            }
        }
        self.assertEqual(self.states(await self.synced()), expected)
        self.assertEqual(self.states(await self.synced(before)), expected)
        self.assertEqual(self.states(await self.synced(self.newest())), {})
        self.assertEqual(self.states(await self.synced(user_id=ALICE)), {})

    async def test_followers_are_told_of_an_invite(self) -> None:
        event = self.invited()
        await self.invite(event)
        rows = self.sql(
            "SELECT json_agg(json_build_array(kind, event_id, state_key, outlier) ORDER BY row_no)"
            " FROM synrepl.events WHERE room_id = %s",
            self.room.room_id,
        )
        self.assertEqual(
            rows,
            [["ev", event.event_id, DORA, True], ["state", event.event_id, DORA, None]],
        )

    async def test_version_1_of_the_endpoint_shows_the_room_in_the_event(self) -> None:
        room = self.remote.create_room("1", BOB, name="old")
        event = self.invited(room=room)
        content = {**event.fields, "unsigned": {"invite_room_state": _SHOWN, "age": 3}}
        path = f"{quote(event.room_id)}/{quote(event.event_id, safe='')}"
        answer = await self.ask("PUT", f"{FEDERATION}/v1/invite/{path}", content)
        self.assertEqual(answer.status, 200, answer.body)
        status, body = answer.json
        self.assertEqual((status, set(body["event"]["signatures"])), (200, {REMOTE, HERE}))
        shown = self.states(await self.synced())[room.room_id]
        self.assertEqual(shown["m.room.name"], {"name": "a room"})

    async def test_a_second_invite_takes_the_place_of_the_first(self) -> None:
        await self.invite(self.invited())
        since = self.newest()
        shown = [{**_SHOWN[0], "content": {"name": "another name"}}]  # type: ignore[dict-item]
        await self.invite(self.invited(), invite_room_state=shown)
        state = self.states(await self.synced(since))[self.room.room_id]
        self.assertEqual(state["m.room.name"], {"name": "another name"})
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._remote_memberships"), 1)

    async def test_an_invite_into_a_room_of_this_server_is_an_event_of_the_room(self) -> None:
        room = await self.shared_room(name="near")
        event = self.invited(room=room)
        self.assertEqual((await self.invite(event)).status, 200)
        self.assertEqual(self.stored(event), "accepted")
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._remote_memberships"), 0)
        state = self.states(await self.synced())[room.room_id]
        self.assertEqual(state["m.room.member"], {"membership": "invite"})

    async def test_the_room_is_known_as_others_once_the_user_has_joined(self) -> None:
        await self.invite(self.invited())
        self.remote.send(self.room.room_id, "m.room.member", DORA, {"membership": "join"}, DORA)
        await self.store(self.room)
        update = await self.synced()
        self.assertEqual((list(update.joined), list(update.invited)), ([self.room.room_id], []))

    async def test_a_room_that_everybody_left_can_be_entered_by_an_invite_again(self) -> None:
        await self.invite(self.invited())
        for membership in ("join", "leave"):
            content = {"membership": membership}
            self.remote.send(self.room.room_id, "m.room.member", DORA, content, DORA)
        await self.store(self.room)
        self.assertEqual(self.states(await self.synced()), {})
        since = self.newest()
        await self.invite(self.invited())
        self.assertEqual(list(self.states(await self.synced())), [self.room.room_id])
        self.assertEqual(list(self.states(await self.synced(since))), [self.room.room_id])

    async def test_invites_are_stored_by_the_process_of_their_room(self) -> None:
        two = self.resident(await self.start_process("two"), ("two",))
        here = self.resident(self.one, ("two",))
        here.others["two"] = two
        listening, self.listening = self.listening, self.listen(here)
        self.addCleanup(listening.stop)
        self.assertEqual((await self.invite(self.invited())).status, 200)
        self.assertEqual(here.forwarded, [("two", "store membership in a remote room")])
        self.assertEqual(self.sql("SELECT DISTINCT writer FROM synrepl.events"), "two")
        self.assertEqual(list(self.states(await self.synced())), [self.room.room_id])

    async def test_what_is_no_invite_of_a_user_of_this_server_is_refused(self) -> None:
        event = self.invited()
        elsewhere = self.invited("@x:elsewhere.test")
        message = self.say(self.room)
        unsigned = canonical_json({**event.fields, "signatures": {}})
        refused = [
            (await self.invite(elsewhere), 403, "M_FORBIDDEN"),
            (await self.invite(message), 400, "M_BAD_JSON"),
            (await self.invite(event, OTHER), 403, "M_FORBIDDEN"),
            (await self.invite(event, room_id="!other:remote.test"), 400, "M_BAD_JSON"),
            (await self.invite(event, event_id="$other"), 400, "M_BAD_JSON"),
            (await self.invite(event, event=json.loads(unsigned)), 403, "M_FORBIDDEN"),
            (await self.invite(event, event="text"), 400, "M_BAD_JSON"),
            (await self.invite(event, room_version=10), 400, "M_BAD_JSON"),
            (await self.invite(event, room_version="x"), 400, "M_INCOMPATIBLE_ROOM_VERSION"),
        ]
        for answer, status, errcode in refused:
            self.assert_refused(answer, status, errcode)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._remote_memberships"), 0)
        self.assertEqual(self.states(await self.synced()), {})

    async def test_what_is_shown_of_a_room_is_bounded(self) -> None:
        event = {**_SHOWN[0], "content": {"name": "x" * 60_000}}  # type: ignore[dict-item]
        await self.invite(self.invited(), invite_room_state=[event] * 50)
        size = self.sql("SELECT octet_length(stripped_state) FROM synrepl._remote_memberships")
        self.assertLess(size, 130_000)
        self.assertEqual(len((await self.synced()).invited), 1)
