"""Users of one server join, leave, knock and invite in rooms of another one, as the daemons assemble them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from synrepl.core import jsons
from system_tests.federation.test_sending_servers import SendingServersCase
from tests.cli.cli_case import free_port
from tests.daemon.client_api.http_client import HttpMatrixClient
from tests.daemon.federation.two_servers import OneServer

_STATE = (
    "SELECT k.type, k.state_key, e.event_id FROM synrepl._current_state c"
    " JOIN synrepl._room_keys k USING (room_no, slot) JOIN synrepl._room_events e USING (event_no)"
    " JOIN synrepl._rooms r ON r.room_no = c.room_no WHERE r.room_id = %s ORDER BY 1, 2"
)


class JoiningServersCase(SendingServersCase):
    """Two servers, each with a user and a client."""

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        self.one, self.two = [await self.with_users(users=["alice", "bob"]) for _ in range(2)]
        self.alice_of_one = await self.one.client("alice")
        self.alice_of_two = await self.two.client("alice")

    async def room(self, **chosen: Any) -> str:
        """A room of the first server."""
        return await self.alice_of_one.create_room(preset="public_chat", **chosen)

    async def enter(
        self, client: HttpMatrixClient, named: str, via: OneServer | None = None
    ) -> str:
        """Have a user join; returns the room's ID."""
        query = "" if via is None else f"?via={quote(via.name)}&server_name=nobody.invalid"
        reply = await client.ask("POST", f"/join/{quote(named)}{query}", {})
        self.assertEqual(reply.status, 200, reply)
        return str(reply.json["room_id"])

    async def say(self, server: OneServer, room_id: str, body: str = "hello") -> str:
        """Have Alice of a server say something; the event's ID."""
        client = self.alice_of_one if server is self.one else self.alice_of_two
        reply = await client.say(room_id, body, body)
        self.assertEqual(reply.status, 200, reply)
        return str(reply.json["event_id"])

    async def until_complete(self, server: OneServer) -> None:
        """Wait until all rooms of a server have their full state."""
        partial = "SELECT 1 FROM synrepl._partial_rooms"
        await self.until(lambda: not self.rows(server, partial))

    def check_equal(self, room_id: str) -> None:
        """Both have the same state."""
        states = [self.rows(each, _STATE, room_id) for each in (self.one, self.two)]
        self.assertTrue(states[0])
        self.assertEqual(*states)


class JoiningServers(JoiningServersCase):
    """Masters that talk to each other over TLS."""

    async def test_talk_in_a_room_before_it_is_complete(self) -> None:
        room_id = await self.room()
        for number in range(3):
            content = {"membership": "invite"}
            path = f"/rooms/{quote(room_id)}/state/m.room.member/@u{number}:{quote(self.one.name)}"
            await self.alice_of_one.ask("PUT", path, content)
        assert self.two.running is not None
        partial_rooms = self.two.running.services.partial_rooms
        assert partial_rooms is not None
        await partial_rooms.worker.stop()
        self.assertEqual(await self.enter(self.alice_of_two, room_id, self.one), room_id)
        self.assertEqual(len(self.rows(self.two, "SELECT 1 FROM synrepl._partial_rooms")), 1)
        await self.until_there(self.one, await self.say(self.two, room_id, "from two"))
        await self.until_there(self.two, await self.say(self.one, room_id, "from one"))
        self.assertEqual(len(self.rows(self.two, "SELECT 1 FROM synrepl._partial_rooms")), 1)
        await self.two.stop()
        await self.two.start()
        await self.until_complete(self.two)
        await self.until_there(self.one, await self.say(self.two, room_id, "again"))
        self.check_equal(room_id)
        synced = await self.alice_of_two.ask("GET", "/sync?timeout=0")
        self.assertIn(room_id, synced.json["rooms"]["join"])

    async def test_join_with_the_whole_state_of_a_room(self) -> None:
        room_id = await self.room()
        config, user_id = str(self.two.directory / "master.yaml"), self.alice_of_two.user_id
        join = ("join", "-c", config, "--user", user_id, room_id, "--via", self.one.name)
        done = await self.run_command(*join, "--whole")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertRegex(done.out, f"^{user_id} joined {room_id} in .* s\\.\n$")
        self.assertEqual(self.rows(self.two, "SELECT 1 FROM synrepl._resync_jobs"), [])
        await self.until_there(self.one, await self.say(self.two, room_id, "from two"))
        await self.until_there(self.two, await self.say(self.one, room_id, "from one"))
        self.check_equal(room_id)

    async def test_join_by_a_command(self) -> None:
        room_id = await self.room(room_alias_name="lobby")
        config, user_id = str(self.two.directory / "master.yaml"), self.alice_of_two.user_id
        join = ("join", "-c", config, "--user")
        named = (user_id, f"#lobby:{self.one.name}")
        done = await self.run_command(*join, *named, "--reason", "curious")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertRegex(done.out, f"{user_id} joined {room_id} in .* s\\.\n.*rooms resync")
        await self.until_complete(self.two)
        self.check_equal(room_id)
        again = await self.run_command(*join, user_id, room_id, "--via", self.one.name, "--json")
        found = jsons.decode(again.out, "done")
        self.assertEqual((found["joined"], found["event_id"]), (True, None))
        other = f"@bob:{self.two.name}"
        refused = await self.run_command(*join, other, "!no:x.invalid", "--via", self.one.name)
        self.assertEqual(refused.code, 1)
        self.assertRegex(refused.err, f"^synrepl: error: .*{self.one.name}: 404 M_NOT_FOUND")
        for user, expected in (("@bob:other", "no user of"), ("bob", "not acceptable")):
            refused = await self.run_command(*join, user, room_id)
            self.assertEqual(refused.code, 1)
            self.assertRegex(refused.err, f"^synrepl: error: .*{expected}")
        joins = jsons.decode(await self.two.ask("/joins"), "joins")
        self.assertEqual(joins["running"], [])
        self.assertEqual(joins["outcomes"], {"partial": 1, "whole": 1, "RoomNotAtServers": 1})
        metrics = (await self.two.ask("/metrics")).decode()
        self.assertIn('synrepl_federation_joins_total{outcome="partial"} 1.0', metrics)
        self.assertIn("synrepl_federation_joins_running 0.0", metrics)

    async def test_join_by_alias_and_find_it(self) -> None:
        room_id = await self.room(room_alias_name="lobby")
        alias = f"#lobby:{self.one.name}"
        found = await self.alice_of_two.ask("GET", f"/directory/room/{quote(alias)}")
        self.assertEqual(found.json, {"room_id": room_id, "servers": [self.one.name]})
        self.assertEqual(await self.enter(self.alice_of_two, alias), room_id)
        reply = await self.alice_of_two.ask("POST", f"/join/{quote('#no:' + self.one.name)}", {})
        self.assertEqual((reply.status, reply.errcode), (404, "M_NOT_FOUND"))

    async def test_join_after_an_invite_and_leave_again(self) -> None:
        room_id = await self.alice_of_one.create_room(
            preset="private_chat", invite=[self.alice_of_two.user_id]
        )
        synced = await self.alice_of_two.ask("GET", "/sync?timeout=0")
        self.assertIn(room_id, synced.json["rooms"]["invite"])
        await self.enter(self.alice_of_two, room_id)
        await self.until_complete(self.two)
        self.check_equal(room_id)
        reply = await self.alice_of_two.ask("POST", f"/rooms/{quote(room_id)}/leave", {})
        self.assertEqual(reply.status, 200, reply)
        left = "SELECT membership FROM synrepl._memberships WHERE user_id = %s"
        user_id = self.alice_of_two.user_id
        await self.until(lambda: self.rows(self.one, left, user_id) == [("leave",)])

    async def test_reject_an_invite_also_if_the_other_server_is_away(self) -> None:
        for is_away in (False, True):
            room_id = await self.alice_of_one.create_room(preset="private_chat")
            reply = await self.alice_of_one.ask(
                "POST", f"/rooms/{quote(room_id)}/invite", {"user_id": self.alice_of_two.user_id}
            )
            self.assertEqual(reply.status, 200, reply)
            if is_away:
                await self.one.stop()
            reply = await self.alice_of_two.ask("POST", f"/rooms/{quote(room_id)}/leave", {})
            self.assertEqual(reply.status, 200, reply)
            synced = await self.alice_of_two.ask("GET", "/sync?timeout=0")
            self.assertNotIn(room_id, synced.json.get("rooms", {}).get("invite", {}))
            if not is_away:
                left = "SELECT membership FROM synrepl._memberships WHERE user_id = %s"
                found = self.rows(self.one, left, self.alice_of_two.user_id)
                self.assertEqual(found, [("leave",)])

    async def test_knock_and_are_let_in(self) -> None:
        rules = [{"type": "m.room.join_rules", "content": {"join_rule": "knock"}}]
        room_id = await self.alice_of_one.create_room(initial_state=rules, name="club")
        path = f"/knock/{quote(room_id)}?via={quote(self.one.name)}"
        reply = await self.alice_of_two.ask("POST", path, {"reason": "please"})
        self.assertEqual(reply.status, 200, reply)
        synced = await self.alice_of_two.ask("GET", "/sync?timeout=0")
        shown = synced.json["rooms"]["knock"][room_id]["knock_state"]["events"]
        self.assertIn({"name": "club"}, [each["content"] for each in shown])
        reply = await self.alice_of_one.ask(
            "POST", f"/rooms/{quote(room_id)}/invite", {"user_id": self.alice_of_two.user_id}
        )
        self.assertEqual(reply.status, 200, reply)
        await self.enter(self.alice_of_two, room_id)
        await self.until_complete(self.two)
        self.check_equal(room_id)

    async def test_tell_a_client_why_a_room_cannot_be_joined(self) -> None:
        room_id = await self.alice_of_one.create_room(preset="private_chat")
        path = f"/rooms/{quote(room_id)}/join?via={quote(self.one.name)}"
        reply = await self.alice_of_two.ask("POST", path, {})
        self.assertEqual((reply.status, reply.errcode), (403, "M_FORBIDDEN"))
        self.assertIn(f"{self.one.name}: 403 M_FORBIDDEN", reply.json["error"])
        await self.one.stop()
        reply = await self.alice_of_two.ask("POST", path, {})
        self.assertEqual((reply.status, reply.errcode), (502, "M_UNKNOWN"))
        self.assertIn(f"{self.one.name}: it does not answer", reply.json["error"])
        self.assertNotIn("127.0.0.1", reply.json["error"])
        self.assertEqual(self.rows(self.two, "SELECT * FROM synrepl._rooms"), [])

    async def test_change_memberships_by_state_events(self) -> None:
        room_id = await self.alice_of_one.create_room(preset="private_chat")

        async def put(client: HttpMatrixClient, user_id: str, **content: str) -> str:
            path = f"/rooms/{quote(room_id)}/state/m.room.member/{quote(user_id)}"
            reply = await client.ask("PUT", path, content)
            self.assertEqual(reply.status, 200, reply)
            return str(reply.json["event_id"])

        user_id = self.alice_of_two.user_id
        await put(self.alice_of_one, user_id, membership="invite")
        await self.until_there(self.one, await put(self.alice_of_two, user_id, membership="join"))
        event_id = await put(self.alice_of_two, user_id, membership="join", displayname="Alice")
        await self.until_there(self.one, event_id)
        path = f"/rooms/{quote(room_id)}/state/m.room.member/{quote(user_id)}"
        reply = await self.alice_of_one.ask("GET", path)
        self.assertEqual(reply.json, {"membership": "join", "displayname": "Alice"})
        await self.until_there(self.one, await put(self.alice_of_two, user_id, membership="leave"))

    async def test_refuse_invites_that_the_other_server_does_not_take(self) -> None:
        room_id = await self.room()
        reply = await self.alice_of_one.ask(
            "POST", f"/rooms/{quote(room_id)}/invite", {"user_id": "@x:nobody.invalid"}
        )
        self.assertEqual((reply.status, reply.errcode), (502, "M_UNKNOWN"))
        members = "SELECT count(*) FROM synrepl._memberships"
        self.assertEqual(self.rows(self.one, members), [(1,)])


class JoiningWorkers(SendingServersCase):
    """A worker takes the requests, and the master persists the room."""

    async def test_have_the_process_of_the_room_join_it(self) -> None:
        one = await self.with_users(users=["alice"])
        two = await self.with_users({"listeners": [{"port": free_port()}]})
        room_id = await (await one.client("alice")).create_room(preset="public_chat")
        await two.start_worker("edge")
        user_id = self.alice(two).user_id
        join = ("join", "-c", str(two.directory / "edge.yaml"), "--user", user_id, room_id)
        # The ID of the room names its server, too.
        done = await self.run_command(*join, "--via", "nobody.invalid:1")
        self.assertEqual(done.code, 0, done.err)
        joins = jsons.decode(await two.ask("/joins"), "joins")
        self.assertEqual(joins["outcomes"], {"partial": 1})
        edge = jsons.decode(await two.ask("/joins", "edge"), "joins")
        self.assertEqual(edge, {"running": [], "outcomes": {}})
        await one.stop()
        other = ("join", "-c", str(two.directory / "edge.yaml"), "--user", f"@bob:{two.name}")
        refused = await self.run_command(*other, "!other:" + one.name, "--json")
        self.assertEqual(refused.code, 1)
        self.assertRegex(refused.err, f"^synrepl: error: .*{one.name}: it does not answer")
