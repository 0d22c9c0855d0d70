"""Sliding sync over HTTP, at a master in this process."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import quote

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from synrepl.adapters.scheduler import TwistedScheduler
from tests.daemon.client_api.http_client import ClientReply, HttpMatrixClient
from tests.daemon.client_api.test_endpoints import ClientApiCase

OLDER = "/_matrix/client/unstable/org.matrix.simplified_msc3575/sync"
NEWER = "/_matrix/client/v4/sync"


def rooms_list(last: int = 19, limit: int = 5, **more: Any) -> dict[str, Any]:
    """A list of the first rooms, in the older form."""
    return {"ranges": [[0, last]], "timeline_limit": limit, "required_state": [], **more}


class SlidingCase(ClientApiCase):
    """Three users."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.scheduler = TwistedScheduler(reactor)

    async def ask(
        self, client: HttpMatrixClient, body: dict[str, Any], pos: str | None = None, **query: str
    ) -> ClientReply:
        """Send a request in the older form."""
        given = {**query, **({} if pos is None else {"pos": pos})}
        parts = "&".join(f"{name}={quote(value)}" for name, value in given.items())
        return await client.ask("POST", f"{OLDER}?{parts}", body)

    async def slide(
        self, client: HttpMatrixClient, body: dict[str, Any], pos: str | None = None, **query: str
    ) -> Any:
        """The answer to a request in the older form, which must be 200."""
        reply = await self.ask(client, body, pos, **query)
        self.assertEqual(reply.status, 200, reply)
        return reply.json

    async def newer(self, client: HttpMatrixClient, **body: Any) -> Any:
        """The answer to a request in the newer form, which must be 200."""
        reply = await client.ask("POST", NEWER, body)
        self.assertEqual(reply.status, 200, reply)
        return reply.json

    async def room(self, *others: HttpMatrixClient, **chosen: Any) -> str:
        """A room of Alice's, which others have joined."""
        room_id = await self.alice.create_room(preset="public_chat", **chosen)
        for each in others:
            self.assert_code(await each.ask("POST", f"/join/{quote(room_id)}", {}), 200)
        return room_id

    async def say(self, client: HttpMatrixClient, room_id: str, text: str) -> str:
        """Send a message; its event ID."""
        reply = await client.say(room_id, text, text)
        self.assertEqual(reply.status, 200, reply)
        return str(reply.json["event_id"])

    async def until_waiting(self) -> None:
        """Wait until a request waits."""
        waits = self.master_process.running.services.reading.waits
        while not len(waits):
            await self.scheduler.sleep(0.005)

    def counted(self) -> list[str]:
        """The names of transactions from now on."""
        database = self.master_process.running.services.reading.timelines.database
        asked: list[str] = []
        run = database.run

        async def counting(name: str, *args: Any, **kwargs: Any) -> Any:
            if name != "reached":  # the master looks at its streams now and then
                asked.append(name)
            return await run(name, *args, **kwargs)

        self.patch(database, "run", counting)
        return asked


def bodies(room: Any) -> list[str]:
    """The messages of a timeline."""
    events = room.get("timeline", room.get("timeline_events", []))
    return [e["content"]["body"] for e in events if e["type"] == "m.room.message"]


def entries(room: Any) -> dict[tuple[str, str], Any]:
    """The contents of a required state, by key."""
    return {(e["type"], e["state_key"]): e.get("content") for e in room.get("required_state", ())}


class Windows(SlidingCase):
    """Lists, windows and subscriptions."""

    async def test_windows_have_the_most_recently_active_rooms(self) -> None:
        rooms = [await self.room(self.bob, name=str(n)) for n in range(4)]
        await self.say(self.alice, rooms[1], "hello")
        first = await self.slide(self.bob, {"lists": {"all": rooms_list(1)}})
        self.assertEqual(first["lists"], {"all": {"count": 4}})
        self.assertEqual(list(first["rooms"]), [rooms[1], rooms[3]])
        room = first["rooms"][rooms[1]]
        self.assertTrue(room["initial"])
        self.assertEqual(room["name"], "1")
        self.assertEqual(bodies(room)[-1], "hello")
        self.assertEqual(len(room["timeline"]), 5)
        self.assertTrue(room["limited"])
        self.assertEqual(room["num_live"], 0)
        self.assertEqual((room["joined_count"], room["invited_count"]), (2, 0))
        self.assertNotIn("heroes", room)
        grown = await self.slide(self.bob, {"lists": {"all": rooms_list(99)}}, first["pos"])
        self.assertEqual(set(grown["rooms"]), {rooms[0], rooms[2]})
        await self.say(self.alice, rooms[0], "news")
        last = await self.slide(self.bob, {"lists": {"all": rooms_list(99)}}, grown["pos"])
        self.assertEqual(list(last["rooms"]), [rooms[0]])
        room = last["rooms"][rooms[0]]
        self.assertEqual(bodies(room), ["news"])
        self.assertNotIn("initial", room)
        self.assertNotIn("name", room)
        self.assertNotIn("limited", room)
        self.assertEqual(room["num_live"], 1)
        self.assertGreater(room["bump_stamp"], first["rooms"][rooms[1]]["bump_stamp"])

    async def test_a_subscription_has_a_room_outside_of_all_windows(self) -> None:
        rooms = [await self.room(self.bob) for _ in range(3)]
        wanted = {"timeline_limit": 2, "required_state": [["m.room.create", ""]]}
        body = {
            "lists": {"top": rooms_list(0, 1)},
            "room_subscriptions": {rooms[0]: wanted, "!unknown:example.com": wanted},
        }
        first = await self.slide(self.bob, body)
        self.assertEqual(set(first["rooms"]), {rooms[0], rooms[2]})
        self.assertEqual(set(entries(first["rooms"][rooms[0]])), {("m.room.create", "")})
        self.assertEqual(len(first["rooms"][rooms[0]]["timeline"]), 2)
        # A room that matches twice has what both want.
        both = body | {"lists": {"all": rooms_list(9, 4)}}
        again = await self.slide(self.bob, both)
        self.assertEqual(len(again["rooms"][rooms[0]]["timeline"]), 4)
        self.assertEqual(set(entries(again["rooms"][rooms[0]])), {("m.room.create", "")})

    async def test_rooms_of_others_are_not_shown(self) -> None:
        mine = await self.room(self.bob)
        other = await self.room(self.carol)
        wanted = {"timeline_limit": 5, "required_state": [["*", "*"]]}
        answer = await self.slide(
            self.bob, {"lists": {"all": rooms_list()}, "room_subscriptions": {other: wanted}}
        )
        self.assertEqual(set(answer["rooms"]), {mine})
        self.assertEqual(answer["lists"]["all"]["count"], 1)

    async def test_a_room_that_drops_out_of_the_window_goes_on_where_it_was(self) -> None:
        rooms = [await self.room(self.bob, name=str(n)) for n in range(2)]
        body = {"lists": {"top": rooms_list(0, 20)}}
        first = await self.slide(self.bob, body)
        await self.say(self.alice, rooms[0], "first")
        second = await self.slide(self.bob, body, first["pos"])
        self.assertEqual(list(second["rooms"]), [rooms[0]])
        await self.say(self.alice, rooms[1], "missed")
        await self.say(self.alice, rooms[0], "second")
        third = await self.slide(self.bob, body, second["pos"])
        self.assertEqual({k: bodies(v) for k, v in third["rooms"].items()}, {rooms[0]: ["second"]})
        await self.say(self.alice, rooms[1], "back")
        fourth = await self.slide(self.bob, body, third["pos"])
        room = fourth["rooms"][rooms[1]]
        self.assertEqual(bodies(room), ["missed", "back"])
        self.assertNotIn("initial", room)
        self.assertEqual(room["num_live"], 1)

    async def test_more_events_are_told_at_once_when_more_are_wanted(self) -> None:
        room_id = await self.room(self.bob)
        for number in range(6):
            await self.say(self.alice, room_id, str(number))
        first = await self.slide(self.bob, {"lists": {"all": rooms_list(limit=2)}})
        self.assertEqual(bodies(first["rooms"][room_id]), ["4", "5"])
        same = await self.slide(self.bob, {"lists": {"all": rooms_list(limit=1)}}, first["pos"])
        self.assertNotIn("rooms", same)
        more = await self.slide(self.bob, {"lists": {"all": rooms_list(limit=4)}}, same["pos"])
        room = more["rooms"][room_id]
        self.assertEqual(bodies(room), ["2", "3", "4", "5"])
        self.assertTrue(room["unstable_expanded_timeline"])
        self.assertEqual(room["num_live"], 0)
        self.assertNotIn("initial", room)
        back = await self.slide(self.bob, {"lists": {"all": rooms_list(limit=4)}}, more["pos"])
        self.assertNotIn("rooms", back)
        page = await self.bob.ask(
            "GET",
            f"/rooms/{quote(room_id)}/messages?dir=b&limit=2&from={quote(room['prev_batch'])}",
        )
        self.assertEqual([e["content"]["body"] for e in page.json["chunk"]], ["1", "0"])

    async def test_a_position_is_one_in_the_history(self) -> None:
        room_id = await self.room(self.bob)
        await self.say(self.alice, room_id, "before")
        first = await self.slide(self.bob, {"lists": {"all": rooms_list()}})
        await self.say(self.alice, room_id, "after")
        pos = quote(first["pos"])
        page = await self.bob.ask(
            "GET", f"/rooms/{quote(room_id)}/messages?dir=b&limit=1&from={pos}"
        )
        self.assertEqual([e["content"]["body"] for e in page.json["chunk"]], ["before"])


class States(SlidingCase):
    """What is told of states."""

    async def required(self, room_id: str, *pairs: list[str]) -> set[tuple[str, str]]:
        """The keys that are told for pairs."""
        body = {"lists": {"all": rooms_list(limit=1, required_state=list(pairs))}}
        answer = await self.slide(self.bob, body)
        return set(entries(answer["rooms"][room_id]))

    async def test_pairs_may_have_any_type_and_key_and_the_user(self) -> None:
        room_id = await self.room(self.bob, self.carol, name="N")
        alice, bob, carol = (
            ("m.room.member", e.user_id) for e in (self.alice, self.bob, self.carol)
        )
        name, create = ("m.room.name", ""), ("m.room.create", "")
        self.assertEqual(await self.required(room_id, ["m.room.name", ""]), {name})
        self.assertEqual(await self.required(room_id, ["m.room.topic", ""]), set())
        members = await self.required(room_id, ["m.room.member", "*"])
        self.assertEqual(members, {alice, bob, carol})
        self.assertEqual(await self.required(room_id, ["m.room.member", "$ME"]), {bob})
        without_members = await self.required(room_id, ["*", ""])
        self.assertLessEqual({name, create}, without_members)
        self.assertNotIn(bob, without_members)
        everything = await self.required(room_id, ["*", "*"])
        self.assertEqual(everything, without_members | {alice, bob, carol})
        # Beside everything, other pairs leave out what they do not name of their type.
        some = await self.required(room_id, ["*", "*"], ["m.room.member", "$ME"])
        self.assertEqual(some, without_members | {bob})

    async def test_lazy_members_are_those_in_the_timeline_and_told_once(self) -> None:
        room_id = await self.room(self.bob, self.carol)
        await self.say(self.alice, room_id, "1")
        pairs = [["*", "*"], ["m.room.member", "$LAZY"]]
        body = {"lists": {"all": rooms_list(limit=1, required_state=pairs)}}
        first = await self.slide(self.bob, body)
        told = {key for kind, key in entries(first["rooms"][room_id]) if kind == "m.room.member"}
        self.assertEqual(told, {self.alice.user_id})
        await self.say(self.alice, room_id, "2")
        second = await self.slide(self.bob, body, first["pos"])
        self.assertEqual(entries(second["rooms"][room_id]), {})
        await self.say(self.carol, room_id, "3")
        third = await self.slide(self.bob, body, second["pos"])
        keys = set(entries(third["rooms"][room_id]))
        self.assertEqual(keys, {("m.room.member", self.carol.user_id)})
        # The answer is lost, and asked for again: it has the member again.
        again = await self.slide(self.bob, body, second["pos"])
        self.assertEqual(set(entries(again["rooms"][room_id])), keys)
        await self.carol.ask("POST", f"/rooms/{quote(room_id)}/leave", {})
        fourth = await self.slide(self.bob, body, third["pos"])
        content = entries(fourth["rooms"][room_id])["m.room.member", self.carol.user_id]
        self.assertEqual(content["membership"], "leave")
        self.assertEqual(fourth["rooms"][room_id]["joined_count"], 2)

    async def test_changes_are_told_and_what_is_wanted_later(self) -> None:
        room_id = await self.room(self.bob, name="before", topic="T")
        lists = {"all": rooms_list(limit=1, required_state=[["m.room.name", ""]])}
        first = await self.slide(self.bob, {"lists": lists})
        path = f"/rooms/{quote(room_id)}/state/m.room.name/"
        await self.alice.ask("PUT", path, {"name": "after"})
        second = await self.slide(self.bob, {"lists": lists}, first["pos"])
        room = second["rooms"][room_id]
        self.assertEqual(room["name"], "after")
        self.assertEqual(entries(room), {("m.room.name", ""): {"name": "after"}})
        wider = {
            "all": rooms_list(limit=1, required_state=[["m.room.topic", ""], ["m.room.name", ""]])
        }
        third = await self.slide(self.bob, {"lists": wider}, second["pos"])
        self.assertEqual(set(entries(third["rooms"][room_id])), {("m.room.topic", "")})
        self.assertNotIn("timeline", third["rooms"][room_id])
        # What the client has is not told again, whatever it wants meanwhile.
        fourth = await self.slide(self.bob, {"lists": lists}, third["pos"])
        fifth = await self.slide(self.bob, {"lists": wider}, fourth["pos"])
        self.assertNotIn("rooms", fifth)
        await self.slide(self.bob, {"lists": lists}, fifth["pos"])
        await self.alice.ask("PUT", f"/rooms/{quote(room_id)}/state/m.room.topic/", {"topic": "U"})
        sixth = await self.slide(self.bob, {"lists": lists}, fifth["pos"])
        seventh = await self.slide(self.bob, {"lists": wider}, sixth["pos"])
        topic = {("m.room.topic", ""): {"topic": "U"}}
        self.assertEqual(entries(seventh["rooms"][room_id]), topic)

    async def test_a_name_that_is_removed_is_null_and_heroes_come_instead(self) -> None:
        room_id = await self.room(self.bob, name="N")
        body = {"lists": {"all": rooms_list()}}
        first = await self.slide(self.bob, body)
        await self.alice.ask("PUT", f"/rooms/{quote(room_id)}/state/m.room.name/", {})
        await self.alice.ask(
            "PUT", f"/rooms/{quote(room_id)}/state/m.room.avatar/", {"url": "mxc://a/b"}
        )
        second = await self.slide(self.bob, body, first["pos"])
        room = second["rooms"][room_id]
        self.assertIn("name", room)
        self.assertIsNone(room["name"])
        self.assertEqual(room["avatar"], "mxc://a/b")
        unnamed = await self.room(self.bob)
        third = await self.slide(self.bob, body, second["pos"])
        heroes = third["rooms"][unnamed]["heroes"]
        self.assertEqual(heroes, [{"user_id": self.alice.user_id}])


class Memberships(SlidingCase):
    """Invitations, leaves, kicks and bans."""

    body: ClassVar[dict[str, Any]] = {
        "lists": {"all": rooms_list(limit=20, required_state=[["m.room.member", "$ME"]])}
    }

    async def test_an_invitation_becomes_a_room(self) -> None:
        first = await self.slide(self.carol, self.body)
        self.assertEqual(first["lists"]["all"]["count"], 0)
        room_id = await self.alice.create_room(name="Secret", invite=[self.carol.user_id])
        await self.say(self.alice, room_id, "hidden")
        invited = await self.slide(self.carol, self.body, first["pos"])
        room = invited["rooms"][room_id]
        self.assertTrue(room["initial"])
        named = {e["content"].get("name") for e in room["invite_state"]}
        self.assertIn("Secret", named)
        for absent in ("timeline", "required_state", "joined_count", "name"):
            self.assertNotIn(absent, room)
        only = {"lists": {"all": rooms_list(filters={"is_invite": True})}}
        self.assertEqual((await self.slide(self.carol, only))["lists"]["all"]["count"], 1)
        await self.carol.ask("POST", f"/join/{quote(room_id)}", {})
        joined = await self.slide(self.carol, self.body, invited["pos"])
        room = joined["rooms"][room_id]
        self.assertTrue(room["initial"])
        self.assertNotIn("invite_state", room)
        self.assertEqual(room["name"], "Secret")
        self.assertEqual((await self.slide(self.carol, only))["lists"]["all"]["count"], 0)

    async def test_a_rejected_invitation_is_over(self) -> None:
        room_id = await self.alice.create_room(name="S", invite=[self.carol.user_id])
        first = await self.slide(self.carol, self.body)
        await self.carol.ask("POST", f"/rooms/{quote(room_id)}/leave", {})
        second = await self.slide(self.carol, self.body, first["pos"])
        room = second["rooms"][room_id]
        own = entries(room)["m.room.member", self.carol.user_id]
        self.assertEqual(own["membership"], "leave")
        self.assertNotIn("name", room)
        self.assertEqual([e["type"] for e in room["timeline"]], ["m.room.member"])
        fresh = await self.slide(self.carol, self.body)
        self.assertNotIn("rooms", fresh)

    async def test_a_leave_is_told_to_who_knows_the_room_up_to_it(self) -> None:
        room_id = await self.room(self.carol)
        first = await self.slide(self.carol, self.body)
        await self.say(self.alice, room_id, "last")
        await self.carol.ask("POST", f"/rooms/{quote(room_id)}/leave", {})
        await self.say(self.alice, room_id, "after")
        second = await self.slide(self.carol, self.body, first["pos"])
        room = second["rooms"][room_id]
        self.assertEqual(bodies(room), ["last"])
        self.assertEqual(
            entries(room), {("m.room.member", self.carol.user_id): {"membership": "leave"}}
        )
        third = await self.slide(self.carol, self.body, second["pos"])
        self.assertNotIn("rooms", third)
        self.assertNotIn("rooms", await self.slide(self.carol, self.body))

    async def test_a_kick_is_told_to_everybody_until_the_room_is_forgotten(self) -> None:
        room_id = await self.room(self.carol, name="K")
        await self.say(self.alice, room_id, "seen")
        kick = {"user_id": self.carol.user_id}
        await self.alice.ask("POST", f"/rooms/{quote(room_id)}/kick", kick)
        await self.alice.ask("PUT", f"/rooms/{quote(room_id)}/state/m.room.name/", {"name": "L"})
        answer = await self.newer(
            self.carol,
            lists={
                "all": {
                    "range": [0, 9],
                    "timeline_limit": 2,
                    "required_state": {"include": [{"type": "m.room.name"}]},
                }
            },
        )
        room = answer["rooms"][room_id]
        self.assertEqual(room["membership"], "leave")
        self.assertEqual(bodies(room), ["seen"])
        self.assertEqual(entries(room), {("m.room.name", ""): {"name": "K"}})
        await self.carol.ask("POST", f"/rooms/{quote(room_id)}/forget", {})
        self.assertNotIn("rooms", await self.slide(self.carol, self.body))


class Filters(SlidingCase):
    """Lists of some of the rooms."""

    async def listed(self, **filters: Any) -> set[str]:
        """The rooms that pass filters."""
        return set(
            (await self.slide(self.bob, {"lists": {"l": rooms_list(filters=filters)}})).get(
                "rooms", ()
            )
        )

    async def test_rooms_are_told_apart_by_their_state(self) -> None:
        space = await self.room(self.bob, creation_content={"type": "m.space"}, name="Space")
        child = await self.room(self.bob, name="Tea and Coffee")
        secret = await self.room(
            self.bob,
            initial_state=[
                {"type": "m.room.encryption", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}
            ],
        )
        path = f"/rooms/{quote(space)}/state/m.space.child"
        via = {"via": ["example.com"]}
        await self.alice.ask("PUT", f"{path}/{quote(child)}", via)
        await self.alice.ask("PUT", f"{path}/{quote(secret)}", {})
        self.assertEqual(await self.listed(), {space, child, secret})
        self.assertEqual(await self.listed(room_types=["m.space"]), {space})
        self.assertEqual(await self.listed(room_types=[None]), {child, secret})
        self.assertEqual(await self.listed(not_room_types=["m.space"]), {child, secret})
        self.assertEqual(
            await self.listed(room_types=["m.space"], not_room_types=["m.space"]), set()
        )
        self.assertEqual(await self.listed(is_encrypted=True), {secret})
        self.assertEqual(await self.listed(is_encrypted=False), {space, child})
        self.assertEqual(await self.listed(room_name_like="and cof"), {child})
        self.assertEqual(await self.listed(spaces=[space, "!none:example.com"]), {child})
        self.assertEqual(await self.listed(spaces=[]), set())
        await self.alice.ask("PUT", f"{path}/{quote(secret)}", via)
        await self.alice.ask("PUT", f"{path}/{quote(child)}", {})
        self.assertEqual(await self.listed(spaces=[space]), {secret})

    async def test_a_list_changes_with_the_rooms(self) -> None:
        room_id = await self.room(self.bob)
        body = {"lists": {"secret": rooms_list(filters={"is_encrypted": True})}}
        first = await self.slide(self.bob, body)
        self.assertEqual(first["lists"]["secret"]["count"], 0)
        content = {"algorithm": "m.megolm.v1.aes-sha2"}
        await self.alice.ask("PUT", f"/rooms/{quote(room_id)}/state/m.room.encryption/", content)
        second = await self.slide(self.bob, body, first["pos"])
        self.assertTrue(second["rooms"][room_id]["initial"])
        self.assertEqual(second["lists"]["secret"]["count"], 1)


class Newer(SlidingCase):
    """The form of the proposal as it is accepted."""

    def list_of(self, **more: Any) -> dict[str, Any]:
        """A list of all rooms."""
        return {"all": {"timeline_limit": 3, "required_state": {}, **more}}

    async def test_what_is_told_has_other_names(self) -> None:
        room_id = await self.room(self.bob, name="N")
        everything = {"include": [{}], "exclude": [{"type": "m.room.create"}], "lazy_members": True}
        lists = self.list_of(required_state=everything)
        first = await self.newer(self.bob, conn_id="c", lists=lists)
        room = first["rooms"][room_id]
        self.assertEqual((room["membership"], room["lists"]), ("join", ["all"]))
        self.assertEqual(len(room["timeline_events"]), 3)
        keys = set(entries(room))
        self.assertIn(("m.room.power_levels", ""), keys)
        self.assertNotIn(("m.room.create", ""), keys)
        members = {key for kind, key in keys if kind == "m.room.member"}
        senders = {e["sender"] for e in room["timeline_events"]}
        self.assertEqual(members, senders)
        await self.say(self.alice, room_id, "x")
        second = await self.newer(self.bob, conn_id="c", pos=first["pos"], lists=lists)
        self.assertEqual(bodies(second["rooms"][room_id]), ["x"])
        more = self.list_of(timeline_limit=4)
        third = await self.newer(self.bob, conn_id="c", pos=second["pos"], lists=more)
        self.assertTrue(third["rooms"][room_id]["expanded_timeline"])
        invited = await self.alice.create_room(invite=[self.bob.user_id])
        fourth = await self.newer(self.bob, conn_id="c", pos=third["pos"], lists=more)
        self.assertEqual(fourth["rooms"][invited]["membership"], "invite")
        self.assertTrue(fourth["rooms"][invited]["stripped_state"])

    async def test_a_request_waits_for_news(self) -> None:
        room_id = await self.room(self.bob)
        lists = self.list_of()
        first = await self.newer(self.bob, lists=lists)
        waiting = Deferred.fromCoroutine(
            self.newer(self.bob, lists=lists, pos=first["pos"], timeout=60_000)
        )
        await self.until_waiting()
        await self.say(self.alice, room_id, "wake up")
        self.assertEqual(bodies((await waiting)["rooms"][room_id]), ["wake up"])


class Connections(SlidingCase):
    """Positions, retries, and processes that forget."""

    body: ClassVar[dict[str, Any]] = {"lists": {"all": rooms_list(limit=2)}}

    async def test_a_request_that_is_repeated_gets_what_the_lost_answer_had(self) -> None:
        room_id = await self.room(self.bob)
        first = await self.slide(self.bob, self.body)
        await self.say(self.alice, room_id, "one")
        lost = await self.slide(self.bob, self.body, first["pos"])
        await self.say(self.alice, room_id, "two")
        again = await self.slide(self.bob, self.body, first["pos"])
        self.assertEqual(bodies(lost["rooms"][room_id]), ["one"])
        self.assertEqual(bodies(again["rooms"][room_id]), ["one", "two"])
        new = await self.room(self.bob)
        for _ in range(2):  # the first answer is lost
            more = await self.slide(self.bob, self.body, again["pos"])
            self.assertTrue(more["rooms"][new]["initial"])
        after = await self.slide(self.bob, self.body, more["pos"])
        self.assertNotIn("rooms", after)

    async def test_a_position_that_was_replaced_is_unknown(self) -> None:
        await self.room(self.bob)
        first = await self.slide(self.bob, self.body)
        await self.room(self.bob)
        second = await self.slide(self.bob, self.body, first["pos"])
        await self.room(self.bob)
        await self.slide(self.bob, self.body, second["pos"])
        for body in (self.body, {}):
            reply = await self.ask(self.bob, body, first["pos"])
            self.assert_code(reply, 400, "M_UNKNOWN_POS")

    async def test_positions_are_those_of_one_user_and_device_and_connection(self) -> None:
        first = await self.slide(self.bob, self.body | {"conn_id": "c"})
        other_device = await self.user("bob")
        for client, conn_id in (
            (self.alice, "c"),
            (other_device, "c"),
            (self.bob, "d"),
            (self.bob, ""),
        ):
            reply = await self.ask(client, self.body | {"conn_id": conn_id}, first["pos"])
            self.assert_code(reply, 400, "M_UNKNOWN_POS")
        await self.slide(self.bob, self.body | {"conn_id": "c"}, first["pos"])

    async def test_connections_of_a_device_do_not_disturb_each_other(self) -> None:
        room_id = await self.room(self.bob)
        one = await self.slide(self.bob, self.body | {"conn_id": "1"})
        two = await self.slide(self.bob, self.body | {"conn_id": "2"})
        await self.say(self.alice, room_id, "x")
        for conn_id, before in (("1", one), ("2", two)):
            answer = await self.slide(self.bob, self.body | {"conn_id": conn_id}, before["pos"])
            self.assertEqual(bodies(answer["rooms"][room_id]), ["x"])

    async def test_nothing_is_queried_while_nothing_is_new(self) -> None:
        await self.room(self.bob)
        first = await self.slide(self.bob, self.body)
        other = await self.room(self.carol)
        second = await self.slide(self.bob, self.body, first["pos"])
        asked = self.counted()
        await self.say(self.carol, other, "not for Bob")
        asked.clear()
        answer = await self.slide(self.bob, self.body, second["pos"])
        self.assertNotIn("rooms", answer)
        self.assertEqual(asked, [])

    async def test_a_message_in_a_known_room_writes_nothing(self) -> None:
        room_id = await self.room(self.bob)
        first = await self.slide(self.bob, self.body)
        await self.say(self.alice, room_id, "x")
        second = await self.slide(self.bob, self.body, first["pos"])
        await self.say(self.alice, room_id, "y")
        asked = self.counted()
        await self.slide(self.bob, self.body, second["pos"])
        self.assertEqual(asked, ["sliding sync"])

    async def test_a_connection_without_rooms_is_not_woken_by_rooms(self) -> None:
        room_id = await self.room(self.bob)
        body = {"conn_id": "encryption", "extensions": {"e2ee": {"enabled": True}}}
        first = await self.slide(self.bob, body)
        self.assertIn("e2ee", first["extensions"])
        await self.say(self.alice, room_id, "x")
        first = await self.slide(self.bob, body, first["pos"])
        asked = self.counted()
        await self.say(self.alice, room_id, "y")
        asked.clear()
        second = await self.slide(self.bob, body, first["pos"])
        self.assertEqual((second["extensions"], asked), ({}, []))

    async def test_waits_end_with_news_and_with_time(self) -> None:
        room_id = await self.room(self.bob)
        first = await self.slide(self.bob, self.body)
        nothing = await self.slide(self.bob, self.body, first["pos"], timeout="1")
        self.assertNotIn("rooms", nothing)
        waiting = Deferred.fromCoroutine(
            self.slide(self.bob, self.body, nothing["pos"], timeout="60000")
        )
        await self.until_waiting()
        await self.say(self.alice, room_id, "wake up")
        self.assertEqual(bodies((await waiting)["rooms"][room_id]), ["wake up"])

    async def test_versions_announce_it(self) -> None:
        reply = await self.bob.ask("GET", "/_matrix/client/versions")
        self.assertTrue(reply.json["unstable_features"]["org.matrix.simplified_msc3575"])
        answer = await self.slide(self.bob, self.body | {"txn_id": "t"})
        self.assertEqual(answer["txn_id"], "t")


class Refusals(SlidingCase):
    """What is not acceptable."""

    async def test_what_is_no_position_is_unknown(self) -> None:
        body = {"lists": {"all": rooms_list()}}
        pos = (await self.slide(self.bob, body))["pos"]
        kind, position, rules, token = pos.split("-", 3)
        covered = self.master_process.running.services.reading.covered
        self.patch(covered, "timeout_s", 0.0)
        for bad in (
            "x",
            "5",
            "p1",
            "p1-1-0-s",
            f"p{10**30}-1-0-{token}",
            f"{kind}-{position}-{rules}-s00000000_1_1_1_1_1_1",
            f"{kind}-{position}-{rules}-{token}_1",
            f"{kind}-{int(position) + 100}-{rules}-{token}",
            f"p{int(kind[1:]) + 100}-{position}-{rules}-{token}",
            f"{kind}-{position}-{rules}-{token.replace('_', '_9', 1)}",
        ):
            reply = await self.ask(self.bob, body, bad)
            self.assert_code(reply, 400, "M_UNKNOWN_POS")
        reply = await self.bob.ask("POST", NEWER, {"pos": pos + "1" * 20_000})
        self.assert_code(reply, 400, "M_UNKNOWN_POS")

    async def test_what_is_no_request_is_refused(self) -> None:
        rule = {"timeline_limit": 1}
        many = {str(n): rooms_list() for n in range(101)}
        patterns = [["m.room.member", str(n)] for n in range(1_001)]
        for body, code in (
            ({"lists": []}, "M_BAD_JSON"),
            ({"lists": {"a": {"ranges": [[0, 1]]}}}, "M_BAD_JSON"),
            ({"lists": {"a": rooms_list(limit=-1)}}, "M_BAD_JSON"),
            ({"lists": {"a": rooms_list(limit=1) | {"ranges": [[0]]}}}, "M_BAD_JSON"),
            ({"lists": {"a": rooms_list(limit=1) | {"ranges": [[-1, 1]]}}}, "M_BAD_JSON"),
            ({"lists": {"a": rooms_list(limit=1) | {"ranges": [[2, 1]]}}}, "M_INVALID_PARAM"),
            ({"lists": {"a": rooms_list(required_state=[["m.room.name"]])}}, "M_BAD_JSON"),
            ({"lists": {"a": rooms_list(required_state=patterns)}}, "M_INVALID_PARAM"),
            ({"lists": {"a": rooms_list(filters={"is_dm": 1})}}, "M_BAD_JSON"),
            ({"lists": {"a" * 256: rooms_list()}}, "M_INVALID_PARAM"),
            ({"conn_id": "c" * 256}, "M_INVALID_PARAM"),
            ({"conn_id": "\0"}, "M_INVALID_PARAM"),
            ({"lists": many}, "M_INVALID_PARAM"),
            ({"room_subscriptions": {f"!{n}:x": rule for n in range(10_000)}}, "M_INVALID_PARAM"),
            (
                {"extensions": {"to_device": {"enabled": True, "since": "x"}}},
                "M_INVALID_PARAM",
            ),
        ):
            self.assert_code(await self.ask(self.bob, body), 400, code)
        for query in ({"timeout": "-1"}, {"set_presence": "busy"}):
            self.assert_code(await self.ask(self.bob, {}, None, **query), 400, "M_INVALID_PARAM")
        for bad, code in ((b"{", "M_NOT_JSON"), (b"[]", "M_BAD_JSON")):
            reply = await self.bob.ask("POST", OLDER, bad)
            self.assert_code(reply, 400, code)
        anonymous = HttpMatrixClient(self.clients_port)
        self.assert_code(await self.ask(anonymous, {}), 401, "M_MISSING_TOKEN")

    async def test_very_much_is_a_bounded_amount(self) -> None:
        room_id = await self.room(self.bob)
        huge = rooms_list(10**30, 10**30, required_state=[["*", "*"], ["\0", "\0"]])
        ranges = [[10**18, 10**30], [0, 10**30]]
        subscriptions = {f"!{n}\0:x": {"timeline_limit": 10**9} for n in range(1_000)}
        body = {"lists": {"all": huge | {"ranges": ranges}}, "room_subscriptions": subscriptions}
        answer = await self.slide(self.bob, body)
        self.assertEqual(set(answer["rooms"]), {room_id})
        again = await self.slide(self.bob, body, answer["pos"])
        self.assertNotIn("rooms", again)
