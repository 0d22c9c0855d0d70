"""Other servers in rooms of this one: they join, leave, knock, and ask for states and events."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from simulator.federation.pure_server import PureServer
from synrepl.rooms import parse_event, room_version
from tests.daemon.federation.listener_case import FEDERATION, FederationListenerCase
from tests.services.federation.inbound_case import ALICE, BOB, CAROL, HERE, OTHER, REMOTE

_V10 = room_version("10")


class ResidentServer(FederationListenerCase):
    """A room of this server, and others that come into it."""

    async def test_a_user_of_another_server_joins_and_speaks(self) -> None:
        for version in ("1", "6", "10", "11", "12"):
            room_id = await self.create(room_version=version, name=f"room {version}")
            room = await self.remote.join(room_id, BOB, HERE)
            self.assert_same_state(room)
            message = self.say(room)
            await self.remote.outgoing.send_all()
            self.assertEqual(self.stored(message), "accepted", version)
            self.assert_same_state(room)

    async def test_two_servers_hear_of_each_other(self) -> None:
        other = PureServer(OTHER, self.federation)
        room_id = await self.create()
        await self.remote.join(room_id, BOB, HERE)
        room = await other.join(room_id, CAROL, HERE)
        self.assertEqual(room.servers(), {HERE, REMOTE, OTHER})
        flags = "SELECT flags FROM synrepl._room_events WHERE sender = %s"
        self.assertEqual(self.sql(flags, CAROL), 64, "it is sent on to the other servers")

    async def test_members_are_left_out_of_the_answer_to_a_join_that_asks_for_it(self) -> None:
        room_id = await self.create(name="a room")
        await self.remote.join(room_id, BOB, HERE)
        answer = await self.join_partially(room_id, CAROL)
        kinds = [each["type"] for each in answer["state"]]
        self.assertNotIn("m.room.member", kinds)
        self.assertIn("m.room.create", kinds)
        self.assertEqual(answer["members_omitted"], True)
        self.assertEqual(answer["servers_in_room"], [HERE, REMOTE])
        chain = {each["state_key"] for each in answer["auth_chain"]}
        self.assertEqual(chain, {ALICE}, "what the state needs, without what is in it")
        self.assertEqual(answer["event"]["sender"], CAROL)

    async def test_a_room_without_a_name_comes_with_the_memberships_of_some(self) -> None:
        room_id = await self.create()
        await self.remote.join(room_id, BOB, HERE)
        answer = await self.join_partially(room_id, CAROL)
        members = {e["state_key"] for e in answer["state"] if e["type"] == "m.room.member"}
        self.assertEqual(members, {ALICE, BOB})

    async def join_partially(self, room_id: str, user_id: str) -> Any:
        """The answer to a join without members."""
        server = user_id.partition(":")[2]
        form = (await self.get(f"v1/make_join/{room_id}/{user_id}", server, ver="10")).json
        event = self.complete(form["event"], server)
        uri = f"{FEDERATION}/v2/send_join/{quote(room_id)}/{quote(event.event_id)}"
        answer = await self.ask("PUT", f"{uri}?omit_members=true", event.raw, server)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json

    def complete(self, template: dict[str, Any], server: str, version: str = "10") -> Any:
        """An event of a template, signed by a server."""
        from synrepl.rooms import event_of, sign_event

        key = self.federation.keys.signing_key(server)
        rules = room_version(version)
        return event_of(sign_event(template, rules, server, key), rules)
