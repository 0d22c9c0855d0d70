"""Users of other servers join rooms of this one, knock on them and leave them, or are refused."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from simulator.federation.pure_server import PureServer
from synrepl.rooms import Event, canonical_json, event_of, room_version, sign_event
from tests.daemon.federation.listener_case import (
    FEDERATION,
    FederationListenerCase,
    ServerAnswer,
)
from tests.services.federation.inbound_case import ALICE, BOB, CAROL, HERE, OTHER, REMOTE

_AUTHORISED_BY = "join_authorised_via_users_server"


class HandshakeCase(FederationListenerCase):
    """What another server does to join, knock and leave."""

    async def make(
        self, membership: str, room_id: str, user_id: str = BOB, version: str = "10"
    ) -> ServerAnswer:
        """Ask for a template."""
        origin = user_id.partition(":")[2]
        return await self.get(f"v1/make_{membership}/{room_id}/{user_id}", origin, ver=version)

    def complete(self, template: dict[str, Any], origin: str, version: str = "10") -> Event:
        """An event of a template, signed by a server."""
        key, rules = self.federation.keys.signing_key(origin), room_version(version)
        return event_of(sign_event(template, rules, origin, key), rules)

    async def put(
        self,
        endpoint: str,
        event: Event,
        origin: str | None = None,
        *,
        version: str = "v2",
        room_id: str | None = None,
        event_id: str | None = None,
        query: str = "",
    ) -> ServerAnswer:
        """Send an event of a handshake."""
        origin = origin or event.sender.partition(":")[2]
        path = f"{quote(room_id or event.room_id)}/{quote(event_id or event.event_id)}"
        uri = f"{FEDERATION}/{version}/{endpoint}/{path}{query}"
        return await self.ask("PUT", uri, event.raw, origin)

    async def handshake(
        self, membership: str, room_id: str, user_id: str = BOB, **more: Any
    ) -> ServerAnswer:
        """Ask for a template, complete it and send it; the first refusal is the answer."""
        made = await self.make(membership, room_id, user_id)
        if made.status != 200:
            return made
        event = self.complete(made.json["event"], user_id.partition(":")[2])
        return await self.put(f"send_{membership}", event, **more)

    def membership(self, user_id: str) -> str | None:
        """The membership of a user in the only room that has one."""
        found = self.sql("SELECT membership FROM synrepl._memberships WHERE user_id = %s", user_id)
        return None if found is None else str(found)


class Joins(HandshakeCase):
    """A room of this server, and others that come into it."""

    async def test_a_user_of_another_server_joins_and_speaks(self) -> None:
        for version in ("1", "6", "10", "11", "12"):
            room_id = await self.create(room_version=version, name=f"room {version}")
            room = await self.remote.join(room_id, BOB, HERE)
            self.assert_same_state(room)
            message = self.say(room)
            await self.remote.outgoing.send(HERE)
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
        answer = (await self.handshake("join", room_id, CAROL, query="?omit_members=true")).json
        kinds = [each["type"] for each in answer["state"]]
        self.assertNotIn("m.room.member", kinds)
        self.assertIn("m.room.create", kinds)
        self.assertEqual(answer["members_omitted"], True)
        self.assertEqual(answer["servers_in_room"], [HERE, REMOTE])
        chain = {each["state_key"] for each in answer["auth_chain"]}
        self.assertEqual(chain, {ALICE}, "what the state needs, without what is in it")
        self.assertEqual(answer["event"]["sender"], CAROL)

    async def test_a_whole_answer_has_the_whole_auth_chain(self) -> None:
        room_id = await self.create(name="a room")
        answer = (await self.handshake("join", room_id, CAROL)).json
        chain = [each["type"] for each in answer["auth_chain"]]
        self.assertIn("m.room.create", chain, "old servers look for it there")
        self.assertEqual(len(chain), len(set(chain)))

    async def test_a_room_without_a_name_comes_with_the_memberships_of_some(self) -> None:
        room_id = await self.create()
        await self.remote.join(room_id, BOB, HERE)
        answer = (await self.handshake("join", room_id, CAROL, query="?omit_members=true")).json
        members = {e["state_key"] for e in answer["state"] if e["type"] == "m.room.member"}
        self.assertEqual(members, {ALICE, BOB})

    async def test_version_1_of_the_endpoint_has_a_status_before_the_answer(self) -> None:
        room_id = await self.create()
        status, answer = (await self.handshake("join", room_id, version="v1")).json
        self.assertEqual(status, 200)
        self.assertEqual(answer["members_omitted"], False)
        self.assertNotIn("servers_in_room", answer)

    async def test_a_repeated_join_gets_the_same_answer(self) -> None:
        room_id = await self.create()
        made = await self.make("join", room_id)
        event = self.complete(made.json["event"], REMOTE)
        answers = [(await self.put("send_join", event)).json for _ in range(2)]
        self.assertEqual(answers[0], answers[1])

    async def test_joins_of_rooms_that_are_persisted_by_another_process(self) -> None:
        two = self.resident(await self.start_process("two"), ("two",))
        here = self.resident(self.one, ("two",), persists=False)
        here.others["two"] = two
        listening = self.listen(here)
        room_id = await self.create()
        await self.listening.stop()
        self.listening = listening
        room = await self.remote.join(room_id, BOB, HERE)
        self.assertEqual(self.membership(BOB), "join")
        self.assert_same_state(room)
        self.assertEqual(
            [each for _, each in here.forwarded], ["persist membership of another server's user"]
        )
        message = self.say(room)
        await self.remote.outgoing.send(HERE)
        await self.until(lambda: self.stored(message) is not None)
        self.assertEqual(self.stored(message), "accepted")


class RefusedJoins(HandshakeCase):
    """Joins that are refused; nothing of them is stored."""

    async def test_templates_are_refused_by_name(self) -> None:
        room_id = await self.create()
        invited = await self.create(preset="private_chat")
        await self.send(room_id, "m.room.member", {"membership": "ban"}, BOB)
        self.assert_refused(await self.make("join", room_id), 403, "M_FORBIDDEN")
        self.assert_refused(await self.make("join", invited), 403, "M_FORBIDDEN")
        self.assert_refused(await self.make("join", "!none:here.test"), 404, "M_NOT_FOUND")
        answer = await self.make("join", room_id, CAROL, "9")
        self.assert_refused(answer, 400, "M_INCOMPATIBLE_ROOM_VERSION")
        self.assertEqual(answer.json["room_version"], "10")
        answer = await self.get(f"v1/make_join/{room_id}/{CAROL}", OTHER)
        self.assert_refused(answer, 400, "M_INCOMPATIBLE_ROOM_VERSION")
        answer = await self.get(f"v1/make_join/{room_id}/{CAROL}", REMOTE, ver="10")
        self.assert_refused(answer, 403, "M_FORBIDDEN")

    async def test_a_room_that_nobody_here_is_in_any_more_is_not_found(self) -> None:
        room_id = await self.create()
        await self.send(room_id, "m.room.member", {"membership": "leave"}, ALICE)
        self.assert_refused(await self.make("join", room_id), 404, "M_NOT_FOUND")

    async def test_a_server_that_the_acl_denies_gets_nothing(self) -> None:
        room_id = await self.create()
        made = await self.make("join", room_id)
        event = self.complete(made.json["event"], REMOTE)
        acl = {"allow": ["*"], "deny": [REMOTE]}
        await self.send(room_id, "m.room.server_acl", acl, "")
        self.assert_refused(await self.make("join", room_id), 403, "M_FORBIDDEN")
        self.assert_refused(await self.put("send_join", event), 403, "M_FORBIDDEN")
        self.assert_refused(await self.make("leave", room_id), 403, "M_FORBIDDEN")
        path = f"v1/state_ids/{room_id}"
        self.assert_refused(await self.get(path, event_id="$x"), 403, "M_FORBIDDEN")
        self.assertEqual((await self.handshake("join", room_id, CAROL)).status, 200)

    async def test_events_that_are_no_join_of_their_sender_are_refused(self) -> None:
        room_id = await self.create()
        template = (await self.make("join", room_id)).json["event"]
        join = self.complete(template, REMOTE)
        wrong = {
            "another room": {"room_id": "!other:here.test"},
            "another ID": {"event_id": "$other"},
            "a leave": {},
        }
        leave = self.complete({**template, "content": {"membership": "leave"}}, REMOTE)
        for what, more in wrong.items():
            event = leave if what == "a leave" else join
            answer = await self.put("send_join", event, **more)  # type: ignore[arg-type]
            self.assertIn(answer.status, (400, 404), what)
        other = self.complete({**template, "state_key": CAROL}, REMOTE)
        self.assert_refused(await self.put("send_join", other), 400, "M_BAD_JSON")
        self.assert_refused(await self.put("send_join", join, OTHER), 403, "M_FORBIDDEN")
        self.assertEqual(self.membership(BOB), None)

    async def test_joins_that_are_not_signed_are_refused(self) -> None:
        room_id = await self.create()
        template = (await self.make("join", room_id)).json["event"]
        join = self.complete(template, REMOTE)
        rules = room_version("10")
        bare = event_of({**join.fields, "signatures": {}}, rules)
        forged = event_of({**join.fields, "signatures": {REMOTE: {"ed25519:1": "A" * 86}}}, rules)
        changed = event_of({**join.fields, "content": {**join.content, "reason": "x"}}, rules)
        for each in (bare, forged, changed):
            answer = await self.put("send_join", each)
            self.assertIn(answer.status, (400, 403), answer.body)
        self.assertEqual(self.membership(BOB), None)

    async def test_a_join_that_the_rules_refuse_meanwhile_is_not_stored(self) -> None:
        room_id = await self.create()
        join = self.complete((await self.make("join", room_id)).json["event"], REMOTE)
        await self.send(room_id, "m.room.join_rules", {"join_rule": "invite"}, "")
        self.assert_refused(await self.put("send_join", join), 403, "M_FORBIDDEN")
        self.assertEqual(self.stored(join), None)

    async def test_a_join_that_follows_unknown_events_is_not_stored(self) -> None:
        room_id = await self.create()
        template = (await self.make("join", room_id)).json["event"]
        join = self.complete({**template, "prev_events": [f"${'x' * 43}"]}, REMOTE)
        self.assert_refused(await self.put("send_join", join), 403, "M_FORBIDDEN")
        self.assertEqual(self.stored(join), None)

    async def test_what_is_no_event_is_refused(self) -> None:
        room_id = await self.create()
        uri = f"{FEDERATION}/v2/send_join/{quote(room_id)}/%24x"
        for content in ({}, {"type": "m.room.member"}, {"room_id": room_id, "auth_events": 3}):
            answer = await self.ask("PUT", uri, canonical_json(content))
            self.assertEqual(answer.status, 400, answer.body)


class RestrictedJoins(HandshakeCase):
    """A room whose join rule is the membership in another one."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.space = await self.create(name="the other room")

    async def restricted(self, *allowing: str, rule: str = "restricted") -> str:
        """A room that members of others may join."""
        room_id = await self.create(preset="private_chat")
        allow = [{"type": "m.room_membership", "room_id": each} for each in allowing]
        await self.send(room_id, "m.room.join_rules", {"join_rule": rule, "allow": allow}, "")
        return room_id

    async def test_members_of_the_other_room_are_let_in_and_the_join_is_countersigned(
        self,
    ) -> None:
        room_id = await self.restricted(self.space)
        await self.remote.join(self.space, BOB, HERE)
        room = await self.remote.join(room_id, BOB, HERE)
        join = room.current(("m.room.member", BOB))
        assert join is not None
        self.assertEqual(join.content[_AUTHORISED_BY], ALICE)
        self.assertEqual(set(join.signatures), {HERE, REMOTE})
        self.assert_same_state(room)

    async def test_the_rooms_of_a_user_are_looked_at_again_when_the_join_is_sent(self) -> None:
        room_id = await self.restricted(self.space)
        space = await self.remote.join(self.space, BOB, HERE)
        join = self.complete((await self.make("join", room_id)).json["event"], REMOTE)
        self.remote.send(space.room_id, "m.room.member", BOB, {"membership": "leave"}, BOB)
        await self.remote.outgoing.send(HERE)
        self.assert_refused(await self.put("send_join", join), 403, "M_FORBIDDEN")
        self.assertEqual(self.stored(join), None)

    async def test_others_are_refused(self) -> None:
        room_id = await self.restricted(self.space)
        self.assert_refused(await self.make("join", room_id), 403, "M_FORBIDDEN")

    async def test_a_server_that_is_not_in_the_other_room_cannot_tell(self) -> None:
        room_id = await self.restricted(self.space, "!elsewhere:other.test")
        answer = await self.make("join", room_id)
        self.assert_refused(answer, 400, "M_UNABLE_TO_AUTHORISE_JOIN")
        await self.remote.join(self.space, BOB, HERE)
        self.assertEqual((await self.make("join", room_id)).status, 200)

    async def test_a_server_whose_users_may_not_invite_cannot_grant_a_join(self) -> None:
        room_id = await self.restricted(self.space)
        await self.remote.join(self.space, BOB, HERE)
        levels = {"users": {CAROL: 100, ALICE: 40}, "invite": 50}
        await self.send(room_id, "m.room.power_levels", levels, "")
        answer = await self.make("join", room_id)
        self.assert_refused(answer, 400, "M_UNABLE_TO_GRANT_JOIN")

    async def test_who_is_invited_needs_no_authorisation(self) -> None:
        room_id = await self.restricted("!elsewhere:other.test")
        await self.send(room_id, "m.room.member", {"membership": "invite"}, BOB)
        made = (await self.make("join", room_id)).json
        self.assertNotIn(_AUTHORISED_BY, made["event"]["content"])


class KnocksAndLeaves(HandshakeCase):
    """Users of other servers knock, reject invites, and leave."""

    async def test_a_knock_is_answered_with_what_is_shown_of_the_room(self) -> None:
        room_id = await self.create(preset="private_chat", name="a room")
        await self.send(room_id, "m.room.join_rules", {"join_rule": "knock"}, "")
        answer = await self.handshake("knock", room_id, version="v1")
        self.assertEqual(answer.status, 200, answer.body)
        shown = {each["type"]: each for each in answer.json["knock_room_state"]}
        self.assertEqual(shown["m.room.name"]["content"], {"name": "a room"})
        self.assertEqual(set(shown["m.room.create"]), {"type", "state_key", "sender", "content"})
        self.assertEqual(self.membership(BOB), "knock")

    async def test_knocks_on_other_rooms_are_refused(self) -> None:
        room_id = await self.create()
        self.assert_refused(await self.make("knock", room_id), 403, "M_FORBIDDEN")
        answer = await self.make("knock", room_id, version="6")
        self.assert_refused(answer, 400, "M_INCOMPATIBLE_ROOM_VERSION")

    async def test_an_invite_is_rejected(self) -> None:
        room_id = await self.create(preset="private_chat")
        await self.send(room_id, "m.room.member", {"membership": "invite"}, BOB)
        answer = await self.handshake("leave", room_id)
        self.assertEqual((answer.status, answer.json), (200, {}))
        self.assertEqual(self.membership(BOB), "leave")

    async def test_version_1_of_a_leave_has_a_status_before_the_answer(self) -> None:
        room_id = await self.create()
        await self.remote.join(room_id, BOB, HERE)
        answer = await self.handshake("leave", room_id, version="v1")
        self.assertEqual(answer.json, [200, {}])
        self.assertEqual(self.membership(BOB), "leave")

    async def test_nobody_leaves_who_is_not_in_the_room(self) -> None:
        room_id = await self.create()
        self.assert_refused(await self.make("leave", room_id), 403, "M_FORBIDDEN")
