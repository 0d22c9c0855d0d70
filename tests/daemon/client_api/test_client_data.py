"""Account data, tags, receipts, typing, presence and messages to devices, at a master in this process."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from random import Random
from typing import Any
from urllib.parse import quote

from synrepl.services.rooms.client_data.account_data import MAX_CONTENT_BYTES, MAX_TAGS
from tests.daemon.client_api.http_client import HttpMatrixClient
from tests.daemon.client_api.random_json import random_json
from tests.daemon.client_api.test_endpoints import ClientApiCase
from tests.daemon.client_api.test_syncing import SyncCase

MANY_REQUESTS = (
    ", rate_limits: {requests: {per_second: 10000, burst: 100000},"
    " writes: {per_second: 10000, burst: 100000}}"
)


class ClientDataCase(SyncCase):
    """Alice has a room in which Bob is."""

    def of_user(self, client: HttpMatrixClient, path: str) -> str:
        """A path below a user."""
        return f"/user/{quote(client.user_id)}{path}"

    def ephemeral(self, answer: Any, kind: str) -> list[Any]:
        """The contents of the room's ephemeral events of a type."""
        rooms = answer.get("rooms", {}).get("join", {})
        room = rooms.get(self.room_id, {"ephemeral": {"events": []}})
        return [e["content"] for e in room["ephemeral"]["events"] if e["type"] == kind]

    def room_data(self, answer: Any) -> dict[str, Any]:
        """The room's account data, by type."""
        return {e["type"]: e["content"] for e in self.joined(answer)["account_data"]["events"]}

    def global_data(self, answer: Any) -> dict[str, Any]:
        """The account data that belongs to no room, by type."""
        events = answer.get("account_data", {"events": []})["events"]
        return {e["type"]: e["content"] for e in events}


class AccountData(ClientDataCase):
    """What clients keep for themselves, and tags."""

    async def test_what_is_set_is_read_and_told_to_its_user_alone(self) -> None:
        bob, other = await self.sync(self.bob), await self.sync(self.alice)
        for room, content in (
            ("", {"a": [1, 2**70, "é\0"]}),
            (f"/rooms/{quote(self.room_id)}", {}),
        ):
            path = self.of_user(self.bob, f"{room}/account_data/org.test")
            reply = await self.bob.ask("PUT", path, content)
            self.assert_code(reply, 200)
            self.assertIn("account_data:", reply.headers["x-synrepl-position"])
            self.assertEqual((await self.bob.ask("GET", path)).json, content)
            for method in ("GET", "PUT"):
                body = {} if method == "PUT" else None
                self.assert_code(await self.alice.ask(method, path, body), 403, "M_FORBIDDEN")
        answer = await self.sync(self.bob, bob["next_batch"])
        self.assertEqual(self.global_data(answer), {"org.test": {"a": [1, 2**70, "é\0"]}})
        self.assertEqual(self.room_data(answer), {"org.test": {}})
        self.assertFalse(self.joined(answer)["timeline"]["events"])
        first = await self.sync(self.bob)
        self.assertEqual(self.global_data(first), self.global_data(answer))
        self.assertEqual(self.room_data(first), {"org.test": {}})
        nothing = await self.sync(self.bob, answer["next_batch"])
        self.assertFalse({"account_data", "rooms"} & nothing.keys())
        alices = await self.sync(self.alice, other["next_batch"])
        self.assertFalse({"account_data", "rooms"} & alices.keys())

    async def test_what_is_set_twice_is_told_once_and_what_is_the_same_not_at_all(self) -> None:
        first = await self.sync(self.bob)
        path = self.of_user(self.bob, "/account_data/org.test")
        for number in (1, 2):
            self.assert_code(await self.bob.ask("PUT", path, {"n": number}), 200)
        answer = await self.sync(self.bob, first["next_batch"])
        self.assertEqual(self.global_data(answer), {"org.test": {"n": 2}})
        positions = {
            (await self.bob.ask("PUT", path, {"n": 2})).headers["x-synrepl-position"]
            for _ in range(3)
        }
        self.assertEqual(len(positions), 1)
        nothing = await self.sync(self.bob, answer["next_batch"])
        self.assertNotIn("account_data", nothing)

    async def test_what_is_no_account_data_is_refused(self) -> None:
        bob = quote(self.bob.user_id)
        for path, body, status, code in (
            (f"/user/{bob}/account_data/m.fully_read", {}, 405, "M_BAD_JSON"),
            (f"/user/{bob}/account_data/m.push_rules", {}, 405, "M_BAD_JSON"),
            (f"/user/{bob}/rooms/%21a/account_data/m.fully_read", {}, 405, "M_BAD_JSON"),
            (f"/user/{bob}/account_data/{'x' * 256}", {}, 400, "M_INVALID_PARAM"),
            (f"/user/{bob}/account_data/a%00", {}, 400, "M_INVALID_PARAM"),
            (f"/user/{bob}/rooms/room/account_data/a", {}, 400, "M_INVALID_PARAM"),
            (f"/user/{bob}/account_data/a", [], 400, "M_BAD_JSON"),
            (f"/user/{bob}/account_data/a", b"{", 400, "M_NOT_JSON"),
            (f"/user/{bob}/account_data/a", {"x": "x" * MAX_CONTENT_BYTES}, 413, "M_TOO_LARGE"),
        ):
            self.assert_code(await self.bob.ask("PUT", path, body), status, code)
        for path in (f"/user/{bob}/account_data/none", f"/user/{bob}/rooms/%21a/account_data/a%00"):
            self.assert_code(await self.bob.ask("GET", path), 404, "M_NOT_FOUND")
        rules = await self.bob.ask("GET", f"/user/{bob}/account_data/m.push_rules")
        self.assertEqual(rules.json["global"]["override"], [])

    async def test_tags_are_added_changed_and_removed(self) -> None:
        first = await self.sync(self.bob)
        path = self.of_user(self.bob, f"/rooms/{quote(self.room_id)}/tags")
        self.assertEqual((await self.bob.ask("GET", path)).json, {"tags": {}})
        for tag, body in (("m.favourite", {"order": 0.25}), ("u.work", {}), ("u.work", {"x": 1})):
            self.assert_code(await self.bob.ask("PUT", f"{path}/{tag}", body), 200)
        tags = {"m.favourite": {"order": 0.25}, "u.work": {"x": 1}}
        self.assertEqual((await self.bob.ask("GET", path)).json, {"tags": tags})
        answer = await self.sync(self.bob, first["next_batch"])
        self.assertEqual(self.room_data(answer), {"m.tag": {"tags": tags}})
        self.assert_code(await self.bob.ask("DELETE", f"{path}/u.work"), 200)
        self.assert_code(await self.bob.ask("DELETE", f"{path}/u.none"), 200)
        later = await self.sync(self.bob, answer["next_batch"])
        del tags["u.work"]
        self.assertEqual(self.room_data(later), {"m.tag": {"tags": tags}})
        for tag, body, status, code in (
            ("x" * 256, {}, 400, "M_INVALID_PARAM"),
            ("u.x", {"order": "high"}, 400, "M_BAD_JSON"),
            ("u.x", {"order": True}, 400, "M_BAD_JSON"),
        ):
            self.assert_code(await self.bob.ask("PUT", f"{path}/{tag}", body), status, code)
        self.assert_code(await self.alice.ask("GET", path), 403, "M_FORBIDDEN")
        many = {"tags": {f"u.{number}": {} for number in range(MAX_TAGS)}}
        content = self.of_user(self.bob, f"/rooms/{quote(self.room_id)}/account_data/m.tag")
        self.assert_code(await self.bob.ask("PUT", content, many), 200)
        self.assert_code(await self.bob.ask("PUT", f"{path}/u.more", {}), 413, "M_TOO_LARGE")

    async def test_data_of_a_room_comes_with_the_room_when_it_is_joined(self) -> None:
        path = self.of_user(self.carol, f"/rooms/{quote(self.room_id)}/account_data/org.test")
        first = await self.sync(self.carol)
        self.assert_code(await self.carol.ask("PUT", path, {"a": 1}), 200)
        before = await self.sync(self.carol, first["next_batch"])
        self.assertNotIn("rooms", before)
        await self.carol.ask("POST", f"/join/{quote(self.room_id)}", {})
        answer = await self.sync(self.carol, before["next_batch"])
        self.assertEqual(self.room_data(answer), {"org.test": {"a": 1}})
        self.assert_code(await self.carol.ask("POST", f"{self.room}/leave", {}), 200)
        left = await self.sync(self.carol, answer["next_batch"])
        (event,) = left["rooms"]["leave"][self.room_id]["account_data"]["events"]
        self.assertEqual(event, {"type": "org.test", "content": {"a": 1}})
        self.assertNotIn("join", left["rooms"])

    async def test_filters_choose_by_type_room_and_sender(self) -> None:
        first = await self.sync(self.bob)
        room = f"/rooms/{quote(self.room_id)}"
        for place, kind in product(("", room), ("a.one", "a.two", "b")):
            path = self.of_user(self.bob, f"{place}/account_data/{kind}")
            self.assert_code(await self.bob.ask("PUT", path, {}), 200)
        for wanted, of_none, of_room in (
            ({}, {"a.one", "a.two", "b"}, {"a.one", "a.two", "b"}),
            ({"account_data": {"types": ["a.*"]}}, {"a.one", "a.two"}, {"a.one", "a.two", "b"}),
            ({"account_data": {"not_types": ["*"]}}, set(), {"a.one", "a.two", "b"}),
            ({"account_data": {"limit": 1}}, {"b"}, {"a.one", "a.two", "b"}),
            ({"account_data": {"senders": ["@a:b"]}}, set(), {"a.one", "a.two", "b"}),
            ({"room": {"account_data": {"types": ["b"]}}}, {"a.one", "a.two", "b"}, {"b"}),
            ({"room": {"account_data": {"rooms": []}}}, {"a.one", "a.two", "b"}, set()),
            ({"room": {"not_rooms": [self.room_id]}}, {"a.one", "a.two", "b"}, set()),
        ):
            for since in (None, first["next_batch"]):
                answer = await self.sync(self.bob, since, filter=json.dumps(wanted))
                found = self.global_data(answer).keys()
                rooms = answer.get("rooms", {}).get("join", {})
                data = self.room_data(answer) if self.room_id in rooms else {}
                self.assertEqual((found, data.keys()), (of_none, of_room), (wanted, since))


class Receipts(ClientDataCase):
    """Receipts and read markers."""

    async def receipt(
        self, client: HttpMatrixClient, event_id: str, kind: str = "m.read", **body: Any
    ) -> Any:
        """Send a receipt."""
        return await client.ask("POST", f"{self.room}/receipt/{kind}/{quote(event_id)}", body)

    async def test_receipts_are_told_to_everybody_in_the_room(self) -> None:
        event = await self.say(self.alice, "one")
        first = await self.sync(self.alice)
        self.assertEqual(self.ephemeral(first, "m.receipt"), [])
        reply = await self.receipt(self.bob, event)
        self.assert_code(reply, 200)
        self.assertIn("receipts:", reply.headers["x-synrepl-position"])
        answer = await self.sync(self.alice, first["next_batch"])
        (content,) = self.ephemeral(answer, "m.receipt")
        self.assertGreater(content[event]["m.read"][self.bob.user_id]["ts"], 1_600_000_000_000)
        self.assertEqual(
            self.joined(answer)["unread_notifications"],
            {"notification_count": 0, "highlight_count": 0},
        )
        self.assertNotIn("rooms", await self.sync(self.alice, answer["next_batch"]))
        for client in (self.alice, self.bob):
            self.assertEqual(self.ephemeral(await self.sync(client), "m.receipt"), [content])
        await self.carol.ask("POST", f"/join/{quote(self.room_id)}", {})
        self.assertEqual(self.ephemeral(await self.sync(self.carol), "m.receipt"), [content])

    async def test_private_receipts_are_told_to_their_user_alone(self) -> None:
        event = await self.say(self.alice, "one")
        alice, bob = await self.sync(self.alice), await self.sync(self.bob)
        self.assert_code(await self.receipt(self.bob, event, "m.read.private"), 200)
        answer = await self.sync(self.bob, bob["next_batch"])
        (content,) = self.ephemeral(answer, "m.receipt")
        self.assertEqual(list(content[event]["m.read.private"]), [self.bob.user_id])
        self.assertNotIn("rooms", await self.sync(self.alice, alice["next_batch"]))
        self.assertEqual(self.ephemeral(await self.sync(self.alice), "m.receipt"), [])
        self.assertEqual(self.ephemeral(await self.sync(self.bob), "m.receipt"), [content])

    async def test_a_receipt_does_not_go_back(self) -> None:
        events = [await self.say(self.alice, text) for text in ("one", "two")]
        for event in (events[1], events[0], events[1]):
            self.assert_code(await self.receipt(self.bob, event), 200)
        (content,) = self.ephemeral(await self.sync(self.alice), "m.receipt")
        self.assertEqual(list(content), [events[1]])
        for event in (events[1], events[0]):
            self.assert_code(await self.receipt(self.bob, event, "m.fully_read"), 200)
        self.assertEqual(
            self.room_data(await self.sync(self.bob)), {"m.fully_read": {"event_id": events[1]}}
        )

    async def test_threads_have_receipts_of_their_own(self) -> None:
        root = await self.say(self.alice, "root")
        relation = {"m.relates_to": {"rel_type": "m.thread", "event_id": root}}
        replied = await self.alice.ask("PUT", f"{self.room}/send/m.room.message/r", relation)
        reply = replied.json["event_id"]
        reaction = {"m.relates_to": {"rel_type": "m.annotation", "event_id": reply, "key": "+"}}
        reacted = await self.bob.ask("PUT", f"{self.room}/send/m.reaction/x", reaction)
        main = await self.say(self.alice, "main")
        for event, thread, status in (
            (main, "main", 200),
            (root, "main", 200),
            (root, root, 200),
            (reply, root, 200),
            (reacted.json["event_id"], root, 200),
            (reply, "main", 400),
            (main, root, 400),
            (main, "$nothing", 400),
            (main, "", 400),
            (main, "x\0", 400),
        ):
            sent = await self.receipt(self.bob, event, thread_id=thread)
            self.assert_code(sent, status, None if status == 200 else "M_INVALID_PARAM")
        self.assert_code(await self.receipt(self.bob, main), 200)
        (content,) = self.ephemeral(await self.sync(self.alice), "m.receipt")
        found = {
            (event, data.get("thread_id"))
            for event, types in content.items()
            for data in types["m.read"].values()
        }
        # At one event, the receipt of no thread stands for all.
        self.assertEqual(found, {(main, None), (reacted.json["event_id"], root)})

    async def test_read_markers_are_set_at_once(self) -> None:
        events = [await self.say(self.alice, text) for text in ("one", "two", "three")]
        first = await self.sync(self.bob)
        markers = dict(
            zip(("m.fully_read", "m.read", "m.read.private"), events, strict=True), other=1
        )
        reply = await self.bob.ask("POST", f"{self.room}/read_markers", markers)
        self.assert_code(reply, 200)
        position = reply.headers["x-synrepl-position"]
        self.assertTrue("account_data:" in position and "receipts:" in position, position)
        answer = await self.sync(self.bob, first["next_batch"])
        self.assertEqual(self.room_data(answer), {"m.fully_read": {"event_id": events[0]}})
        (content,) = self.ephemeral(answer, "m.receipt")
        self.assertEqual(
            {event: list(types) for event, types in content.items()},
            {events[1]: ["m.read"], events[2]: ["m.read.private"]},
        )
        self.assert_code(await self.bob.ask("POST", f"{self.room}/read_markers", {}), 200)

    async def test_what_is_no_receipt_is_refused(self) -> None:
        event = await self.say(self.alice, "one")
        other = await self.carol.create_room()
        for client, room, kind, event_id, body, status, code in (
            (self.carol, self.room_id, "m.read", event, {}, 403, "M_FORBIDDEN"),
            (self.carol, self.room_id, "m.fully_read", event, {}, 403, "M_FORBIDDEN"),
            (self.carol, other, "m.read", event, {}, 404, "M_NOT_FOUND"),
            (self.bob, self.room_id, "m.read", "$nothing", {}, 404, "M_NOT_FOUND"),
            (self.bob, self.room_id, "m.fully_read", "$nothing", {}, 404, "M_NOT_FOUND"),
            (self.bob, "!none:x", "m.read", event, {}, 404, "M_NOT_FOUND"),
            (self.bob, self.room_id, "m.seen", event, {}, 400, "M_INVALID_PARAM"),
            (self.bob, self.room_id, "m.read", "x" * 256, {}, 400, "M_INVALID_PARAM"),
            (self.bob, self.room_id, "m.read", event, {"thread_id": 1}, 400, "M_BAD_JSON"),
            (
                *(self.bob, self.room_id, "m.fully_read", event, {"thread_id": "main"}),
                *(400, "M_INVALID_PARAM"),
            ),
        ):
            path = f"/rooms/{quote(room)}/receipt/{kind}/{quote(event_id)}"
            self.assert_code(await client.ask("POST", path, body), status, code)
        markers = f"{self.room}/read_markers"
        self.assert_code(await self.bob.ask("POST", markers, {"m.read": 1}), 400, "M_BAD_JSON")

    async def test_a_sync_with_receipts_alone_reads_no_rooms(self) -> None:
        event = await self.say(self.alice, "one")
        first = await self.sync(self.alice)
        await self.say(self.bob, "two")  # the first check reads the rooms that Alice is in
        first = await self.sync(self.alice, first["next_batch"])
        self.assert_code(await self.receipt(self.bob, event), 200)
        asked = self.counted()
        answer = await self.sync(self.alice, first["next_batch"])
        self.assertTrue(self.ephemeral(answer, "m.receipt"))
        self.assertEqual(asked, {"client data": 1})

    def counted(self) -> Counter[str]:
        """The transactions of clients from now on, by name."""
        database = self.master_process.running.services.reading.timelines.database
        asked: Counter[str] = Counter()
        run = database.run

        async def counting(name: str, *args: Any, **kwargs: Any) -> Any:
            if name != "reached":  # the master looks at its streams now and then
                asked[name] += 1
            return await run(name, *args, **kwargs)

        self.patch(database, "run", counting)
        return asked

    async def test_filters_choose_ephemeral_events(self) -> None:
        event = await self.say(self.alice, "one")
        typing = f"{self.room}/typing/{quote(self.bob.user_id)}"
        self.assert_code(await self.bob.ask("PUT", typing, {"typing": True}), 200)
        self.assert_code(await self.receipt(self.bob, event), 200)
        for wanted, types in (
            ({}, ["m.receipt", "m.typing"]),
            ({"types": ["m.receipt"]}, ["m.receipt"]),
            ({"not_types": ["m.receipt"]}, ["m.typing"]),
            ({"limit": 1}, ["m.receipt"]),
            ({"limit": 0}, []),
            ({"not_rooms": [self.room_id]}, []),
            ({"not_senders": [self.bob.user_id], "types": ["m.receipt"]}, []),
        ):
            given = json.dumps({"room": {"ephemeral": wanted}})
            answer = await self.sync(self.alice, filter=given)
            found = [e["type"] for e in self.joined(answer)["ephemeral"]["events"]]
            self.assertEqual(found, types, wanted)


class Typing(ClientDataCase):
    """Who types."""

    async def type(self, client: HttpMatrixClient, **body: Any) -> Any:
        """Say that a user types, or does not."""
        return await client.ask("PUT", f"{self.room}/typing/{quote(client.user_id)}", body)

    async def test_typing_begins_and_ends(self) -> None:
        first = await self.sync(self.alice)
        self.assert_code(await self.type(self.bob, typing=True, timeout=60_000), 200)
        answer = await self.sync(self.alice, first["next_batch"], timeout="10000")
        self.assertEqual(self.ephemeral(answer, "m.typing"), [{"user_ids": [self.bob.user_id]}])
        self.assertEqual(
            self.ephemeral(await self.sync(self.alice), "m.typing"),
            [{"user_ids": [self.bob.user_id]}],
        )
        self.assert_code(await self.type(self.alice, typing=True), 200)
        self.assert_code(await self.type(self.bob, typing=False), 200)
        later = await self.sync(self.alice, answer["next_batch"], timeout="10000")
        self.assertEqual(self.ephemeral(later, "m.typing"), [{"user_ids": [self.alice.user_id]}])
        self.assert_code(await self.type(self.alice, typing=False), 200)
        last = await self.sync(self.alice, later["next_batch"], timeout="10000")
        self.assertEqual(self.ephemeral(last, "m.typing"), [{"user_ids": []}])
        self.assertEqual(self.ephemeral(await self.sync(self.alice), "m.typing"), [])

    async def test_typing_ends_after_its_time(self) -> None:
        first = await self.sync(self.alice)
        self.assert_code(await self.type(self.bob, typing=True, timeout=150), 200)
        told: list[Any] = []
        while {"user_ids": []} not in told:
            first = await self.sync(self.alice, first["next_batch"], timeout="10000")
            told += self.ephemeral(first, "m.typing")
        self.assertIn(
            told, ([{"user_ids": [self.bob.user_id]}, {"user_ids": []}], [{"user_ids": []}])
        )

    async def test_who_may_not_type_is_refused(self) -> None:
        self.assert_code(await self.type(self.carol, typing=True), 403, "M_FORBIDDEN")
        path = f"{self.room}/typing/{quote(self.alice.user_id)}"
        self.assert_code(await self.bob.ask("PUT", path, {"typing": True}), 403, "M_FORBIDDEN")
        for body, code in (
            ({}, "M_BAD_JSON"),
            ({"typing": 1}, "M_BAD_JSON"),
            ({"typing": True, "timeout": -1}, "M_INVALID_PARAM"),
            ({"typing": True, "timeout": "x"}, "M_BAD_JSON"),
        ):
            self.assert_code(await self.type(self.bob, **body), 400, code)
        nowhere = f"/rooms/!none:x/typing/{quote(self.bob.user_id)}"
        self.assert_code(await self.bob.ask("PUT", nowhere, {"typing": True}), 404, "M_NOT_FOUND")


class Ignoring(ClientDataCase):
    """Users who ignore others."""

    async def ignore(self, *users: HttpMatrixClient) -> None:
        """Bob ignores these users."""
        content = {"ignored_users": {each.user_id: {} for each in users}}
        path = self.of_user(self.bob, "/account_data/m.ignored_user_list")
        self.assert_code(await self.bob.ask("PUT", path, content), 200)

    async def test_messages_are_left_out_from_the_next_sync_on(self) -> None:
        first = await self.sync(self.bob)
        await self.say(self.alice, "unseen")
        await self.ignore(self.alice)
        await self.alice.ask("PUT", f"{self.room}/state/m.room.topic/", {"topic": "seen"})
        answer = await self.sync(self.bob, first["next_batch"])
        self.assertEqual(self.bodies(answer), [])
        types = [e["type"] for e in self.joined(answer)["timeline"]["events"]]
        self.assertEqual(types, ["m.room.topic"])
        page = await self.bob.ask("GET", f"{self.room}/messages?dir=b&limit=100")
        self.assertNotIn("m.room.message", {e["type"] for e in page.json["chunk"]})
        await self.say(self.alice, "seen again")
        await self.ignore()
        later = await self.sync(self.bob, answer["next_batch"])
        self.assertEqual(self.bodies(later), ["seen again"])
        self.assertEqual(self.bodies(await self.sync(self.bob)), ["unseen", "seen again"])

    async def test_invitations_receipts_and_typing_are_left_out(self) -> None:
        first = await self.sync(self.bob)
        await self.ignore(self.alice)
        invited = await self.alice.ask("POST", "/createRoom", {"invite": [self.bob.user_id]})
        self.assert_code(invited, 200)
        event = await self.say(self.alice, "one")
        path = f"{self.room}/receipt/m.read/{quote(event)}"
        self.assert_code(await self.alice.ask("POST", path, {}), 200)
        typing = f"{self.room}/typing/{quote(self.alice.user_id)}"
        self.assert_code(await self.alice.ask("PUT", typing, {"typing": True}), 200)
        for since in (first["next_batch"], None):
            answer = await self.sync(self.bob, since)
            self.assertNotIn("invite", answer.get("rooms", {}))
            self.assertEqual(self.ephemeral(answer, "m.receipt"), [])
            self.assertIn(self.ephemeral(answer, "m.typing"), ([], [{"user_ids": []}]))

    async def test_a_list_of_any_form_is_taken(self) -> None:
        path = self.of_user(self.bob, "/account_data/m.ignored_user_list")
        for content in (
            {},
            {"ignored_users": []},
            {"ignored_users": {self.bob.user_id: 1, "": {}}},
        ):
            self.assert_code(await self.bob.ask("PUT", path, content), 200)
            text = json.dumps(content)
            await self.say(self.bob, text)
            self.assertIn(text, self.bodies(await self.sync(self.bob)))


class PresenceOfUsers(ClientDataCase):
    """Who is there."""

    def told(self, answer: Any) -> dict[str, Any]:
        """The presence in an answer, by user."""
        events = answer.get("presence", {"events": []})["events"]
        return {e["sender"]: e["content"] for e in events}

    async def test_presence_is_told_to_those_who_share_a_room(self) -> None:
        alice = await self.sync(self.alice, set_presence="offline")
        carol = await self.sync(self.carol, set_presence="offline")
        path = f"/presence/{quote(self.bob.user_id)}/status"
        status = {"presence": "online", "status_msg": "Reading"}
        self.assert_code(await self.bob.ask("PUT", path, status), 200)
        answer = await self.sync(self.alice, alice["next_batch"], set_presence="offline")
        found = self.told(answer)[self.bob.user_id]
        self.assertEqual(
            (found["presence"], found["status_msg"], found["currently_active"]),
            ("online", "Reading", True),
        )
        self.assertGreaterEqual(found["last_active_ago"], 0)
        again = await self.sync(self.alice, answer["next_batch"], set_presence="offline")
        self.assertNotIn(self.bob.user_id, self.told(again))
        unaware = await self.sync(self.carol, carol["next_batch"], set_presence="offline")
        self.assertEqual(self.told(unaware), {})
        seen = await self.alice.ask("GET", path)
        self.assertEqual(seen.json["status_msg"], "Reading")
        self.assert_code(await self.carol.ask("GET", path), 403, "M_FORBIDDEN")
        await self.carol.ask("POST", f"/join/{quote(self.room_id)}", {})
        joined = await self.sync(self.carol, unaware["next_batch"], set_presence="offline")
        self.assertEqual(self.told(joined)[self.bob.user_id]["presence"], "online")
        self.assertEqual(
            self.told(await self.sync(self.carol, set_presence="offline"))[self.bob.user_id][
                "status_msg"
            ],
            "Reading",
        )

    async def test_a_user_who_syncs_is_online_unless_the_sync_says_otherwise(self) -> None:
        alice = await self.sync(self.alice, set_presence="offline")
        path = f"/presence/{quote(self.bob.user_id)}/status"
        before = await self.alice.ask("GET", path)
        self.assertEqual(before.json["presence"], "offline")
        await self.sync(self.bob)
        found: dict[str, Any] = {}
        while self.bob.user_id not in found:
            alice = await self.sync(self.alice, alice["next_batch"], set_presence="offline")
            found |= self.told(alice)
            await self.scheduler.sleep(0.05)
        self.assertEqual(found[self.bob.user_id]["presence"], "online")
        self.assertNotIn(self.alice.user_id, found)

    async def test_what_is_no_presence_is_refused(self) -> None:
        path = f"/presence/{quote(self.bob.user_id)}/status"
        for body, code in (
            ({}, "M_BAD_JSON"),
            ({"presence": "here"}, "M_INVALID_PARAM"),
            ({"presence": "online", "status_msg": 1}, "M_BAD_JSON"),
            ({"presence": "online", "status_msg": "x" * 2000}, "M_INVALID_PARAM"),
            ({"presence": "online", "status_msg": "\0"}, "M_INVALID_PARAM"),
        ):
            self.assert_code(await self.bob.ask("PUT", path, body), 400, code)
        self.assert_code(
            await self.alice.ask("PUT", path, {"presence": "online"}), 403, "M_FORBIDDEN"
        )
        self.assert_code(await self.bob.ask("GET", "/presence/bob/status"), 400, "M_INVALID_PARAM")
        self.assert_code(await self.bob.ask("GET", "/sync?set_presence=x"), 400, "M_INVALID_PARAM")

    async def test_filters_leave_presence_out(self) -> None:
        path = f"/presence/{quote(self.bob.user_id)}/status"
        self.assert_code(await self.bob.ask("PUT", path, {"presence": "online"}), 200)
        for wanted in ({"types": []}, {"not_senders": [self.bob.user_id]}, {"limit": 0}):
            given = json.dumps({"presence": wanted})
            answer = await self.sync(self.alice, filter=given, set_presence="offline")
            self.assertNotIn(self.bob.user_id, self.told(answer), wanted)


class ToDevices(ClientDataCase):
    """Messages to devices."""

    client_api = MANY_REQUESTS

    async def send(
        self, client: HttpMatrixClient, txn_id: str, messages: Any, kind: str = "m.test"
    ) -> Any:
        """Send messages."""
        return await client.ask("PUT", f"/sendToDevice/{kind}/{txn_id}", {"messages": messages})

    def messages(self, answer: Any) -> list[Any]:
        """The contents of the messages in an answer."""
        return [e["content"] for e in answer.get("to_device", {"events": []})["events"]]

    async def device(self, name: str) -> HttpMatrixClient:
        """A device of Bob's, which has synced."""
        client = HttpMatrixClient(self.clients_port)
        await client.log_in("bob", "password of bob", device_id=name)
        return client

    async def test_messages_reach_the_named_devices_or_all_until_they_are_acknowledged(
        self,
    ) -> None:
        phone, laptop = await self.device("PHONE"), await self.device("LAPTOP")
        begun = {each: (await self.sync(each))["next_batch"] for each in (phone, laptop)}
        bob = self.bob.user_id
        sent = await self.send(self.alice, "1", {bob: {"PHONE": {"n": 1}, "UNKNOWN": {"n": 2}}})
        self.assert_code(sent, 200)
        self.assertIn("to_device:", sent.headers["x-synrepl-position"])
        await self.send(self.alice, "2", {bob: {"*": {"n": 3}}, "@x:elsewhere": {"*": {}}})
        for device, expected in ((phone, [1, 3]), (laptop, [3])):
            for _ in range(2):  # it did not acknowledge
                answer = await self.sync(device, begun[device])
                self.assertEqual([m["n"] for m in self.messages(answer)], expected)
            (event, *_) = answer["to_device"]["events"]
            self.assertEqual(set(event), {"type", "sender", "content"})
            self.assertEqual((event["type"], event["sender"]), ("m.test", self.alice.user_id))
            later = await self.sync(device, answer["next_batch"])
            self.assertNotIn("to_device", later)
        while await self.stored():
            await self.scheduler.sleep(0.02)
        for other in (self.alice, self.carol):
            self.assertNotIn("to_device", await self.sync(other))

    async def stored(self) -> int:
        """The number of messages that are stored."""
        database = self.master_process.running.services.reading.timelines.database
        return int(
            await database.run(
                "count",
                lambda txn: txn.execute("SELECT count(*) FROM synrepl._to_device").fetchone()[0],
            )
        )

    async def test_a_repeated_transaction_sends_nothing(self) -> None:
        first = await self.sync(self.bob)
        bob = self.bob.user_id
        for client, txn_id, kind in (
            (self.alice, "1", "m.test"),
            (self.alice, "1", "m.test"),
            (self.alice, "1", "m.other"),
            (self.carol, "1", "m.test"),
        ):
            sent = await self.send(client, txn_id, {bob: {"*": {}}}, kind)
            self.assert_code(sent, 200)
        answer = await self.sync(self.bob, first["next_batch"])
        found = [(e["sender"], e["type"]) for e in answer["to_device"]["events"]]
        alice, carol = self.alice.user_id, self.carol.user_id
        self.assertEqual(found, [(alice, "m.test"), (alice, "m.other"), (carol, "m.test")])

    async def test_many_messages_come_in_several_answers(self) -> None:
        since = (await self.sync(self.bob))["next_batch"]
        for number in range(230):
            await self.send(self.alice, str(number), {self.bob.user_id: {"*": {"n": number}}})
        found: list[int] = []
        sizes = []
        for _ in range(4):
            answer = await self.sync(self.bob, since)
            since = answer["next_batch"]
            sizes.append(len(self.messages(answer)))
            found += [m["n"] for m in self.messages(answer)]
        self.assertEqual(found, list(range(230)))
        self.assertEqual(sizes, [100, 100, 30, 0])

    async def test_a_device_that_logs_out_gets_nothing_more(self) -> None:
        phone = await self.device("PHONE")
        since = (await self.sync(phone))["next_batch"]
        self.assert_code(await phone.ask("POST", "/logout", {}), 200)
        await self.send(self.alice, "1", {self.bob.user_id: {"*": {}, "PHONE": {}}})
        self.assertNotIn("to_device", await self.sync(phone, since))
        self.assertEqual(await self.stored(), 0)

    async def test_what_cannot_be_sent_is_refused(self) -> None:
        bob = self.bob.user_id
        for messages, status, code in (
            ({bob: {"*": {"x": "x" * 70_000}}}, 413, "M_TOO_LARGE"),
            ({f"@u{n}:example.com": {"*": {}} for n in range(2_001)}, 413, "M_TOO_LARGE"),
            ({bob: {"*": 1}}, 400, "M_BAD_JSON"),
            ({bob: []}, 400, "M_BAD_JSON"),
            (None, 400, "M_BAD_JSON"),
        ):
            self.assert_code(await self.send(self.alice, "1", messages), status, code)
        self.assert_code(
            await self.alice.ask("PUT", "/sendToDevice/m.test/1", {}), 400, "M_BAD_JSON"
        )
        self.assert_code(await self.send(self.alice, "x" * 256, {}), 400, "M_INVALID_PARAM")


class FuzzedClientData(ClientDataCase):
    """Bodies that are JSON of any kind."""

    client_api = MANY_REQUESTS

    async def test_no_body_causes_an_internal_error(self) -> None:
        rng = Random(11)
        event, bob = quote(await self.say(self.alice, "one")), quote(self.bob.user_id)
        user, room = f"/user/{bob}", quote(self.room_id)
        paths = (
            ("PUT", f"{user}/account_data/a"),
            ("PUT", f"{user}/account_data/m.ignored_user_list"),
            ("PUT", f"{user}/rooms/{room}/account_data/m.tag"),
            ("PUT", f"{user}/rooms/{room}/tags/a"),
            ("DELETE", f"{user}/rooms/{room}/tags/a"),
            ("POST", f"/rooms/{room}/receipt/m.read/{event}"),
            ("POST", f"/rooms/{room}/read_markers"),
            ("PUT", f"/rooms/{room}/typing/{bob}"),
            ("PUT", f"/presence/{bob}/status"),
            ("PUT", "/sendToDevice/a/%s"),
        )
        since = (await self.sync(self.bob))["next_batch"]
        for count, (_, (method, path)) in enumerate(product(range(30), paths)):
            target = path.replace("%s", str(count))
            body = json.dumps(random_json(rng)).encode()
            reply = await self.bob.ask(method, target, body)
            self.assertLess(reply.status, 500, (path, body, reply))
            if count % 20 == 0:
                for token in (since, None):
                    await self.sync(self.bob, token)


class WithoutTheStreams(ClientApiCase):
    """A server whose catalogue has none of the streams."""

    catalogue = "[events, backfill, caches]"

    async def test_the_endpoints_are_not_there_and_syncs_work(self) -> None:
        room_id = quote(await self.alice.create_room())
        alice = quote(self.alice.user_id)
        sent = await self.alice.say(await self.alice.create_room(), "a", "a")
        for method, path, body in (
            ("PUT", f"/user/{alice}/account_data/a", {}),
            ("PUT", f"/user/{alice}/rooms/{room_id}/tags/a", {}),
            ("POST", f"/rooms/{room_id}/receipt/m.read/{quote(sent.json['event_id'])}", {}),
            ("PUT", f"/rooms/{room_id}/typing/{alice}", {"typing": True}),
            ("PUT", f"/presence/{alice}/status", {"presence": "online"}),
            ("GET", f"/presence/{alice}/status", None),
            ("PUT", "/sendToDevice/a/1", {"messages": {self.alice.user_id: {"*": {}}}}),
        ):
            reply = await self.alice.ask(method, path, body)
            self.assert_code(reply, 404, "M_UNRECOGNIZED")
        answer = await self.alice.ask("GET", "/sync")
        self.assert_code(answer, 200)
        later = await self.alice.ask("GET", f"/sync?since={answer.json['next_batch']}")
        self.assert_code(later, 200)
