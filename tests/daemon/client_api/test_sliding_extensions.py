"""The extensions of sliding sync over HTTP, at a master in this process."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from twisted.internet.defer import Deferred

from tests.daemon.client_api.http_client import HttpMatrixClient
from tests.daemon.client_api.test_client_data import MANY_REQUESTS
from tests.daemon.client_api.test_sliding import SlidingCase, bodies, rooms_list


def enabled(*names: str, **scope: Any) -> dict[str, Any]:
    """Extensions, each of the same rooms."""
    return {name: {"enabled": True, **scope} for name in names}


class ExtensionsCase(SlidingCase):
    """What users do besides sending events."""

    async def put(self, client: HttpMatrixClient, path: str, body: Any) -> None:
        """A PUT below the user, which succeeds."""
        user = quote(client.user_id)
        self.assert_code(await client.ask("PUT", f"/user/{user}{path}", body), 200)

    async def tag(self, client: HttpMatrixClient, room_id: str, tag: str) -> None:
        """Put a tag on a room."""
        await self.put(client, f"/rooms/{quote(room_id)}/tags/{tag}", {})

    async def read_upto(self, client: HttpMatrixClient, room_id: str, event_id: str) -> None:
        """Send a receipt."""
        path = f"/rooms/{quote(room_id)}/receipt/m.read/{quote(event_id)}"
        self.assert_code(await client.ask("POST", path, {}), 200)

    async def type(self, client: HttpMatrixClient, room_id: str, typing: bool = True) -> None:
        """Begin to type, or cease."""
        path = f"/rooms/{quote(room_id)}/typing/{quote(client.user_id)}"
        body = {"typing": typing, "timeout": 30_000}
        self.assert_code(await client.ask("PUT", path, body), 200)


class Labels(ExtensionsCase):
    """Direct chats and tags."""

    async def test_direct_chats_are_told_and_listed(self) -> None:
        rooms = [await self.room(self.bob, name=str(n)) for n in range(2)]
        body = {"lists": {"all": rooms_list()}}
        first = await self.slide(self.bob, body)
        self.assertNotIn("is_dm", first["rooms"][rooms[0]])
        await self.put(self.bob, "/account_data/m.direct", {self.alice.user_id: [rooms[0]]})
        second = await self.slide(self.bob, body, first["pos"])
        self.assertEqual(second["rooms"], {rooms[0]: {"is_dm": True}})
        direct = {"lists": {"dms": rooms_list(filters={"is_dm": True})}}
        answer = await self.slide(self.bob, direct)
        self.assertTrue(answer["rooms"][rooms[0]]["is_dm"])
        self.assertEqual(answer["lists"]["dms"]["count"], 1)
        await self.put(self.bob, "/account_data/m.direct", {"@x:x": ["!x:x", 1], "y": 5})
        third = await self.slide(self.bob, body, second["pos"])
        self.assertEqual(third["rooms"], {rooms[0]: {"is_dm": False}})
        self.assertEqual((await self.slide(self.bob, direct))["lists"]["dms"]["count"], 0)

    async def test_lists_have_rooms_by_their_tags(self) -> None:
        rooms = [await self.room(self.bob, name=str(n)) for n in range(3)]
        await self.tag(self.bob, rooms[0], "m.favourite")
        await self.tag(self.bob, rooms[1], "m.favourite")
        await self.tag(self.bob, rooms[1], "u.x")

        async def listed(**filters: Any) -> set[str]:
            answer = await self.slide(self.bob, {"lists": {"l": rooms_list(filters=filters)}})
            return set(answer.get("rooms", ()))

        self.assertEqual(await listed(tags=["m.favourite", "u.y"]), set(rooms[:2]))
        self.assertEqual(await listed(tags=["m.favourite"], not_tags=["u.x"]), {rooms[0]})
        self.assertEqual(await listed(not_tags=["m.favourite"]), {rooms[2]})
        self.assertEqual(await listed(tags=[]), set())


class AccountData(ExtensionsCase):
    """Account data of users and of rooms."""

    async def test_it_is_told_whole_at_first_and_then_what_changed(self) -> None:
        rooms = [await self.room(self.bob) for _ in range(2)]
        await self.put(self.bob, "/account_data/org.test", {"n": 1})
        await self.tag(self.bob, rooms[0], "u.a")
        await self.tag(self.bob, rooms[1], "u.b")
        body = {"lists": {"top": rooms_list(0)}, "extensions": enabled("account_data")}
        first = await self.slide(self.bob, body)
        told = first["extensions"]["account_data"]
        self.assertEqual(told["global"], [{"type": "org.test", "content": {"n": 1}}])
        tags = {"type": "m.tag", "content": {"tags": {"u.b": {}}}}
        self.assertEqual(told["rooms"], {rooms[1]: [tags]})
        await self.put(self.bob, "/account_data/org.test", {"n": 2})
        await self.tag(self.bob, rooms[0], "u.c")
        second = await self.slide(self.bob, body, first["pos"])
        told = second["extensions"]["account_data"]
        self.assertEqual(told, {"global": [{"type": "org.test", "content": {"n": 2}}]})
        # A room that comes into the window comes with all of it.
        await self.say(self.alice, rooms[0], "x")
        third = await self.slide(self.bob, body, second["pos"])
        tags = {"type": "m.tag", "content": {"tags": {"u.a": {}, "u.c": {}}}}
        self.assertEqual(third["extensions"]["account_data"], {"rooms": {rooms[0]: [tags]}})
        self.assertEqual((await self.slide(self.bob, body, third["pos"]))["extensions"], {})

    async def test_what_is_wanted_later_is_told_whole(self) -> None:
        room_id = await self.room(self.bob)
        await self.put(self.bob, "/account_data/org.test", {"n": 1})
        await self.tag(self.bob, room_id, "u.a")
        lists = {"lists": {"all": rooms_list()}}
        first = await self.slide(self.bob, lists)
        self.assertEqual(first["extensions"], {})
        wanted = lists | {"extensions": enabled("account_data")}
        second = await self.slide(self.bob, wanted, first["pos"])
        told = second["extensions"]["account_data"]
        self.assertEqual((len(told["global"]), set(told["rooms"])), (1, {room_id}))
        # What changes while it is not wanted is told when it is again.
        third = await self.slide(self.bob, lists, second["pos"])
        await self.put(self.bob, "/account_data/org.other", {"n": 1})
        await self.tag(self.bob, room_id, "u.b")
        fourth = await self.slide(self.bob, lists, third["pos"])
        self.assertEqual(fourth["extensions"], {})
        fifth = await self.slide(self.bob, wanted, fourth["pos"])
        told = fifth["extensions"]["account_data"]
        self.assertEqual((len(told["global"]), set(told["rooms"])), (2, {room_id}))


class Ephemeral(ExtensionsCase):
    """Receipts and typing."""

    async def test_receipts_are_told_on_events_that_are_shown(self) -> None:
        room_id = await self.room(self.bob, self.carol)
        old = await self.say(self.alice, room_id, "old")
        await self.read_upto(self.carol, room_id, old)
        await self.read_upto(self.bob, room_id, old)
        new = await self.say(self.alice, room_id, "new")
        await self.read_upto(self.alice, room_id, new)
        body = {"lists": {"all": rooms_list(limit=1)}, "extensions": enabled("receipts")}
        first = await self.slide(self.bob, body)
        event = first["extensions"]["receipts"]["rooms"][room_id]
        self.assertEqual(event["type"], "m.receipt")
        users = {event_id: set(each["m.read"]) for event_id, each in event["content"].items()}
        self.assertEqual(users, {new: {self.alice.user_id}, old: {self.bob.user_id}})
        await self.read_upto(self.carol, room_id, new)
        second = await self.slide(self.bob, body, first["pos"])
        self.assertNotIn("rooms", second)
        event = second["extensions"]["receipts"]["rooms"][room_id]
        self.assertEqual(set(event["content"][new]["m.read"]), {self.carol.user_id})

    async def test_a_room_that_was_out_of_the_window_has_what_was_missed(self) -> None:
        rooms = [await self.room(self.bob) for _ in range(2)]
        body = {"lists": {"top": rooms_list(0)}, "extensions": enabled("receipts", "typing")}
        first = await self.slide(self.bob, {**body, "lists": {"top": rooms_list(1)}})
        event_id = first["rooms"][rooms[0]]["timeline"][-1]["event_id"]
        second = await self.slide(self.bob, body, first["pos"])
        await self.read_upto(self.alice, rooms[0], event_id)
        await self.type(self.alice, rooms[0])
        third = await self.slide(self.bob, body, second["pos"])
        self.assertEqual(third["extensions"], {})
        fourth = await self.slide(self.bob, {**body, "lists": {"top": rooms_list(1)}}, third["pos"])
        told = fourth["extensions"]
        self.assertEqual(set(told["receipts"]["rooms"][rooms[0]]["content"]), {event_id})
        users = told["typing"]["rooms"][rooms[0]]["content"]["user_ids"]
        self.assertEqual(users, [self.alice.user_id])
        # While it is out of the window again, she ceases to type.
        fifth = await self.slide(self.bob, body, fourth["pos"])
        await self.type(self.alice, rooms[0], typing=False)
        sixth = await self.slide(self.bob, body, fifth["pos"])
        self.assertEqual(sixth["extensions"], {})
        last = await self.slide(self.bob, {**body, "lists": {"top": rooms_list(1)}}, sixth["pos"])
        users = last["extensions"]["typing"]["rooms"][rooms[0]]["content"]["user_ids"]
        self.assertEqual(users, [])

    async def test_typing_wakes_a_request(self) -> None:
        room_id = await self.room(self.bob)
        body = {"lists": {"all": rooms_list()}, "extensions": enabled("typing")}
        first = await self.slide(self.bob, body)
        waiting = Deferred.fromCoroutine(self.slide(self.bob, body, first["pos"], timeout="60000"))
        await self.until_waiting()
        await self.type(self.alice, room_id)
        answer = await waiting
        typing = answer["extensions"]["typing"]["rooms"]
        self.assertEqual(typing[room_id]["content"]["user_ids"], [self.alice.user_id])
        self.assertNotIn("rooms", answer)

    async def test_extensions_are_of_the_lists_and_rooms_that_they_name(self) -> None:
        rooms = [await self.room(self.bob) for _ in range(3)]
        rule = {"timeline_limit": 1}
        for scope, expected in (
            ({}, rooms),
            ({"lists": [], "rooms": []}, []),
            ({"lists": ["top"], "rooms": []}, rooms[2:]),
            ({"lists": [], "rooms": ["*"]}, rooms[:2]),
            ({"lists": ["none"], "rooms": [rooms[0], rooms[2]]}, rooms[:1]),
            ({"lists": ["*"], "rooms": []}, rooms[2:]),
        ):
            body = {
                "lists": {"top": rooms_list(0)},
                "room_subscriptions": {rooms[0]: rule, rooms[1]: rule},
                "extensions": enabled("typing", **scope),
            }
            first = await self.slide(self.bob, body)
            for each in rooms:
                await self.type(self.alice, each)
            answer = await self.slide(self.bob, body, first["pos"])
            told = answer["extensions"].get("typing", {"rooms": {}})["rooms"]
            self.assertEqual(set(told), set(expected), scope)
            for each in rooms:
                await self.type(self.alice, each, typing=False)

    async def test_events_of_ignored_users_are_left_out(self) -> None:
        room_id = await self.room(self.bob, self.carol)
        ignored = {"ignored_users": {self.carol.user_id: {}}}
        await self.put(self.bob, "/account_data/m.ignored_user_list", ignored)
        await self.say(self.carol, room_id, "ignored")
        await self.say(self.alice, room_id, "shown")
        answer = await self.slide(self.bob, {"lists": {"all": rooms_list(limit=50)}})
        self.assertEqual(bodies(answer["rooms"][room_id]), ["shown"])


class ToDevice(ExtensionsCase):
    """Messages to devices."""

    client_api = MANY_REQUESTS

    since: str | None = None
    sent = 0

    async def send(self, number: int) -> None:
        """Alice sends a message to all devices of Bob."""
        self.sent += 1
        path = f"/sendToDevice/org.test/t{self.sent}"
        body = {"messages": {self.bob.user_id: {"*": {"n": number}}}}
        self.assert_code(await self.alice.ask("PUT", path, body), 200)

    async def fetch(
        self, pos: str | None, since: str | None = None, limit: int = 100, **query: str
    ) -> tuple[str, str, list[int]]:
        """Ask; the next position, ``next_batch``, and the messages."""
        wanted = {"enabled": True, "limit": limit} | ({} if since is None else {"since": since})
        body = {"conn_id": "encryption", "extensions": {"to_device": wanted}}
        answer = await self.slide(self.bob, body, pos, **query)
        told = answer["extensions"]["to_device"]
        self.assertEqual(
            {(e["type"], e["sender"]) for e in told["events"]} - {("org.test", self.alice.user_id)},
            set(),
        )
        return answer["pos"], told["next_batch"], [e["content"]["n"] for e in told["events"]]

    async def test_messages_are_told_until_the_device_has_them(self) -> None:
        pos, since, told = await self.fetch(None)
        self.assertEqual(told, [])
        await self.send(1)
        for _ in range(2):  # the first answer is lost
            after, batch, told = await self.fetch(pos, since)
            self.assertEqual(told, [1])
        await self.send(2)
        after, batch, told = await self.fetch(after, batch)
        self.assertEqual(told, [2])
        # A connection that begins anew goes on from what the device has.
        _, _, told = await self.fetch(None, batch)
        self.assertEqual(told, [])
        after, again, told = await self.fetch(after, batch)
        self.assertEqual((again, told), (batch, []))

    async def test_a_message_wakes_a_request(self) -> None:
        pos, since, _ = await self.fetch(None)
        waiting = Deferred.fromCoroutine(self.fetch(pos, since, timeout="60000"))
        await self.until_waiting()
        await self.send(1)
        self.assertEqual((await waiting)[2], [1])

    async def test_many_messages_come_in_parts(self) -> None:
        for limit, count in ((1_000, 130), (3, 10), (0, 3)):
            pos, since, _ = await self.fetch(None, self.since)
            for number in range(count):
                await self.send(number)
            seen: list[int] = []
            while True:
                pos, since, told = await self.fetch(pos, since, limit)
                self.assertLessEqual(len(told), max(1, min(limit, 100)))
                if not told:
                    break
                seen += told
            self.assertEqual(seen, list(range(count)))
            self.since = since


class Keys(ExtensionsCase):
    """Keys of devices, of which there are none."""

    async def test_the_first_answer_says_that_there_are_none(self) -> None:
        body = {"extensions": enabled("e2ee", "org.test.unheard_of")}
        first = await self.slide(self.bob, body)
        none = {"device_one_time_keys_count": {}, "device_unused_fallback_key_types": []}
        self.assertEqual(first["extensions"], {"e2ee": none})
        self.assertEqual((await self.slide(self.bob, body, first["pos"]))["extensions"], {})
        disabled = {"extensions": {"e2ee": {"enabled": False}}}
        self.assertEqual((await self.slide(self.bob, disabled))["extensions"], {})
