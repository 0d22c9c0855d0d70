"""Syncing and reading over HTTP, at a master in this process."""

from __future__ import annotations

import json
from random import Random
from typing import Any
from urllib.parse import quote

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from synrepl.adapters.scheduler import TwistedScheduler
from tests.daemon.client_api.http_client import HttpMatrixClient
from tests.daemon.client_api.test_endpoints import ClientApiCase


class SyncCase(ClientApiCase):
    """Alice has a room in which Bob is."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.scheduler = TwistedScheduler(reactor)
        created = await self.alice.ask(
            "POST", "/createRoom", {"preset": "public_chat", "name": "Tea"}
        )
        self.room_id: str = created.json["room_id"]
        self.room = f"/rooms/{quote(self.room_id)}"
        self.assert_code(await self.bob.ask("POST", f"/join/{quote(self.room_id)}", {}), 200)

    async def sync(self, client: HttpMatrixClient, since: str | None = None, **query: str) -> Any:
        """The answer of a sync, which must be 200."""
        given = {**query, **({} if since is None else {"since": since})}
        parts = "&".join(f"{name}={quote(value)}" for name, value in given.items())
        reply = await client.ask("GET", f"/sync?{parts}")
        self.assertEqual(reply.status, 200, reply)
        return reply.json

    async def say(self, client: HttpMatrixClient, text: str) -> str:
        """Send a message; its event ID."""
        reply = await client.say(self.room_id, text, text)
        self.assertEqual(reply.status, 200, reply)
        return str(reply.json["event_id"])

    def joined(self, answer: Any) -> Any:
        """What an answer says of the room."""
        return answer["rooms"]["join"][self.room_id]

    def bodies(self, answer: Any) -> list[str]:
        """The messages of the room's timeline."""
        events = self.joined(answer)["timeline"]["events"]
        return [e["content"]["body"] for e in events if e["type"] == "m.room.message"]


class Syncing(SyncCase):
    """``/sync``."""

    async def test_the_first_answer_has_rooms_with_their_state_and_newest_events(self) -> None:
        for number in range(15):
            await self.say(self.alice, str(number))
        answer = await self.sync(self.bob)
        room = self.joined(answer)
        self.assertTrue(room["timeline"]["limited"])
        self.assertEqual(self.bodies(answer), [str(n) for n in range(5, 15)])
        state = {(e["type"], e["state_key"]): e for e in room["state"]["events"]}
        self.assertEqual(state["m.room.name", ""]["content"], {"name": "Tea"})
        self.assertIn(("m.room.member", "@bob:example.com"), state)
        self.assertEqual(room["summary"]["m.joined_member_count"], 2)
        event = room["timeline"]["events"][0]
        for absent in ("hashes", "signatures", "auth_events", "prev_events", "depth", "room_id"):
            self.assertNotIn(absent, event)
        self.assertEqual(event["unsigned"]["membership"], "join")

    async def test_later_answers_have_what_is_new_and_nothing_twice(self) -> None:
        first = await self.sync(self.bob)
        await self.say(self.alice, "one")
        await self.say(self.bob, "two")
        answer = await self.sync(self.bob, first["next_batch"])
        self.assertEqual(self.bodies(answer), ["one", "two"])
        mine = self.joined(answer)["timeline"]["events"][-1]
        self.assertEqual(mine["unsigned"]["transaction_id"], "two")
        self.assertFalse(self.joined(answer)["timeline"]["limited"])
        nothing = await self.sync(self.bob, answer["next_batch"])
        self.assertNotIn("rooms", nothing)
        self.assertEqual(nothing["next_batch"], answer["next_batch"])

    async def test_a_sync_waits_for_news(self) -> None:
        first = await self.sync(self.bob)
        waiting = Deferred.fromCoroutine(self.sync(self.bob, first["next_batch"], timeout="60000"))
        waits = self.master_process.running.services.reading.waits
        while not len(waits):
            await self.scheduler.sleep(0.005)
        await self.say(self.alice, "wake up")
        self.assertEqual(self.bodies(await waiting), ["wake up"])
        self.assertEqual(len(waits), 0)

    async def test_nothing_is_queried_while_nothing_is_new(self) -> None:
        first = await self.sync(self.bob)
        created = await self.carol.ask("POST", "/createRoom", {})
        self.assert_code(created, 200)
        path = f"/user/{quote(self.bob.user_id)}/filter"
        stored = (await self.bob.ask("POST", path, {"room": {}})).json["filter_id"]
        answer = await self.sync(self.bob, first["next_batch"], filter=stored)
        since = answer["next_batch"]
        database = self.master_process.running.services.reading.timelines.database
        asked: list[str] = []
        run = database.run

        async def counting(name: str, *args: Any, **kwargs: Any) -> Any:
            if name != "reached":  # the master looks at its streams now and then
                asked.append(name)
            return await run(name, *args, **kwargs)

        self.patch(database, "run", counting)
        await self.carol.say(created.json["room_id"], "not for Bob", "1")
        asked.clear()
        answer = await self.sync(self.bob, since, filter=stored)
        self.assertNotIn("rooms", answer)
        self.assertEqual(asked, [])

    async def test_gaps_are_filled_by_messages(self) -> None:
        first = await self.sync(self.bob)
        for number in range(25):
            await self.say(self.alice, str(number))
        answer = await self.sync(self.bob, first["next_batch"])
        timeline = self.joined(answer)["timeline"]
        self.assertTrue(timeline["limited"])
        found, token = self.bodies(answer), timeline["prev_batch"]
        while token:
            page = await self.bob.ask(
                "GET", f"{self.room}/messages?dir=b&limit=4&from={token}&to={first['next_batch']}"
            )
            self.assert_code(page, 200)
            found = [e["content"]["body"] for e in reversed(page.json["chunk"])] + found
            token = page.json.get("end")
        self.assertEqual(found, [str(n) for n in range(25)])

    async def test_invitations_joins_and_leaves_are_told(self) -> None:
        first = await self.sync(self.carol)
        self.assertNotIn("rooms", first)
        created = await self.alice.ask(
            "POST", "/createRoom", {"invite": [self.carol.user_id], "name": "Secret"}
        )
        room_id = created.json["room_id"]
        invited = await self.sync(self.carol, first["next_batch"])
        stripped = invited["rooms"]["invite"][room_id]["invite_state"]["events"]
        self.assertEqual(
            {e["content"]["name"] for e in stripped if e["type"] == "m.room.name"}, {"Secret"}
        )
        self.assertTrue(all(set(e) == {"type", "state_key", "sender", "content"} for e in stripped))
        await self.carol.ask("POST", f"/join/{quote(room_id)}", {})
        joined = await self.sync(self.carol, invited["next_batch"])
        room = joined["rooms"]["join"][room_id]
        types = {e["type"] for e in [*room["state"]["events"], *room["timeline"]["events"]]}
        self.assertTrue({"m.room.create", "m.room.power_levels", "m.room.member"} <= types)
        await self.carol.ask("POST", f"/rooms/{quote(room_id)}/leave", {})
        await self.alice.say(room_id, "about Carol", "1")
        left = await self.sync(self.carol, joined["next_batch"])
        events = left["rooms"]["leave"][room_id]["timeline"]["events"]
        self.assertEqual(
            [(e["type"], e["content"].get("membership")) for e in events],
            [("m.room.member", "leave")],
        )
        again = await self.sync(self.carol, left["next_batch"])
        self.assertNotIn("rooms", again)

    async def test_full_state_and_state_after(self) -> None:
        first = await self.sync(self.bob)
        answer = await self.sync(self.bob, first["next_batch"], full_state="true")
        self.assertTrue(self.joined(answer)["state"]["events"])
        await self.alice.ask("PUT", f"{self.room}/state/m.room.topic/", {"topic": "Oolong"})
        for prefix in ("", "org.matrix.msc4222."):
            wanted = {f"{prefix}use_state_after": "true"}
            later = self.joined(await self.sync(self.bob, first["next_batch"], **wanted))
            after = later[f"{prefix}state_after"]["events"]
            self.assertEqual([e["type"] for e in after], ["m.room.topic"])
            self.assertNotIn("state", later)

    async def test_filters_are_stored_and_used(self) -> None:
        wanted = {"room": {"timeline": {"limit": 1, "types": ["m.room.message"]}}}
        user = quote(self.bob.user_id)
        stored = await self.bob.ask("POST", f"/user/{user}/filter", wanted)
        self.assert_code(stored, 200)
        again = await self.bob.ask("POST", f"/user/{user}/filter", wanted)
        self.assertEqual(stored.json, again.json)
        filter_id = stored.json["filter_id"]
        found = await self.bob.ask("GET", f"/user/{user}/filter/{filter_id}")
        self.assertEqual(found.json, wanted)
        await self.say(self.alice, "one")
        await self.say(self.alice, "two")
        for given in (filter_id, json.dumps(wanted)):
            answer = await self.sync(self.bob, filter=given)
            self.assertEqual(self.bodies(answer), ["two"])
            self.assertEqual(len(self.joined(answer)["timeline"]["events"]), 1)
        other = await self.alice.ask("GET", f"/user/{user}/filter/{filter_id}")
        self.assert_code(other, 403, "M_FORBIDDEN")

    async def test_what_is_no_token_or_filter_is_refused(self) -> None:
        first = await self.sync(self.bob)
        token = first["next_batch"]
        for query, status, code in (
            ("since=x", 400, "M_INVALID_PARAM"),
            ("since=s00000000_1_1_1_1_1_1", 400, "M_INVALID_PARAM"),
            (f"since={token}_1", 400, "M_INVALID_PARAM"),
            ("filter=17", 404, "M_NOT_FOUND"),
            ("filter=%7Bx", 400, "M_NOT_JSON"),
            ("filter=%7B%22room%22:1%7D", 400, "M_INVALID_PARAM"),
            ("timeout=-1", 400, "M_INVALID_PARAM"),
            ("full_state=maybe", 400, "M_INVALID_PARAM"),
        ):
            self.assert_code(await self.bob.ask("GET", f"/sync?{query}"), status, code)


class Fuzzed(SyncCase):
    """Tokens and filters that no server made."""

    client_api = ", rate_limits: {requests: {per_second: 10000, burst: 100000}}"

    async def test_no_token_and_no_filter_is_an_internal_error(self) -> None:
        rng = Random(7)
        first = await self.sync(self.bob)
        page = await self.bob.ask("GET", f"{self.room}/messages?dir=b&limit=2")
        tokens = [
            first["next_batch"],
            page.json["end"],
            self.joined(first)["timeline"]["prev_batch"],
        ]
        covered = self.master_process.running.services.reading.covered
        self.patch(covered, "timeout_s", 0.0)  # nobody waits for tokens of the future
        statuses = set()
        for _ in range(150):
            token = quote(_mutated(rng, rng.choice(tokens)), safe="")
            wanted = quote(
                _mutated(rng, '{"room":{"timeline":{"limit":3,"types":["m.*"]}}}'), safe=""
            )
            for path in (
                f"/sync?since={token}&filter={wanted}",
                f"{self.room}/messages?dir={rng.choice('bf')}&from={token}",
                f"{self.room}/messages?dir={rng.choice('bf')}&to={token}",
                f"{self.room}/members?at={token}",
            ):
                reply = await self.bob.ask("GET", path)
                statuses.add(reply.status)
                self.assertIn(reply.status, (200, 400, 404, 503), (path, reply))
        self.assertLessEqual({200, 400}, statuses)


def _mutated(rng: Random, text: str) -> str:
    """A text with a few letters changed, doubled, or taken out."""
    letters = list(text)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(letters))
        letters[at] = rng.choice(
            ["", letters[at] * 2, rng.choice('0159_~.-stvw{}[]"\0é'), "99999999999"]
        )
        letters = [each for each in letters if each] or ["s"]
    return "".join(letters)


class SyncingByLists(SyncCase):
    """``/sync`` of a process that keeps a list of news for each user."""

    client_api = ", news: lists"

    async def test_what_is_new_is_told_once(self) -> None:
        first = await self.sync(self.bob)
        await self.say(self.alice, "one")
        answer = await self.sync(self.bob, first["next_batch"])
        self.assertEqual(self.bodies(answer), ["one"])
        await self.say(self.alice, "two")
        again = await self.sync(self.bob, answer["next_batch"])
        self.assertEqual(self.bodies(again), ["two"])
        self.assertNotIn("rooms", await self.sync(self.bob, again["next_batch"]))
        both = await self.sync(self.bob, first["next_batch"])
        self.assertEqual(self.bodies(both), ["one", "two"])

    async def test_a_room_is_new_when_it_is_joined_and_left(self) -> None:
        first = await self.sync(self.carol)
        since = (await self.sync(self.carol, first["next_batch"]))["next_batch"]
        self.assert_code(await self.carol.ask("POST", f"/join/{quote(self.room_id)}", {}), 200)
        joined = await self.sync(self.carol, since)
        room = self.joined(joined)
        told = [*room["state"]["events"], *room["timeline"]["events"]]
        self.assertIn("m.room.create", {each["type"] for each in told})
        self.assert_code(await self.carol.ask("POST", f"{self.room}/leave", {}), 200)
        await self.say(self.alice, "among us")
        left = await self.sync(self.carol, joined["next_batch"])
        self.assertEqual(list(left["rooms"]), ["leave"])
        timeline = left["rooms"]["leave"][self.room_id]["timeline"]["events"]
        self.assertEqual([each["type"] for each in timeline], ["m.room.member"])


class Reading(SyncCase):
    """The endpoints that read a room."""

    async def test_history_in_both_directions(self) -> None:
        for number in range(6):
            await self.say(self.alice, str(number))
        newest = await self.bob.ask("GET", f"{self.room}/messages?dir=b&limit=3")
        self.assertEqual([e["content"]["body"] for e in newest.json["chunk"]], ["5", "4", "3"])
        self.assertTrue(all(e["room_id"] == self.room_id for e in newest.json["chunk"]))
        oldest = await self.bob.ask("GET", f"{self.room}/messages?dir=f&limit=2")
        self.assertEqual(oldest.json["chunk"][0]["type"], "m.room.create")
        more = await self.bob.ask(
            "GET", f"{self.room}/messages?dir=f&limit=100&from={oldest.json['end']}"
        )
        self.assertEqual(more.json["chunk"][-1]["content"]["body"], "5")
        self.assertNotIn("end", more.json)
        lazy = quote(json.dumps({"lazy_load_members": True, "types": ["m.room.message"]}))
        page = await self.bob.ask("GET", f"{self.room}/messages?dir=b&limit=2&filter={lazy}")
        self.assertEqual({e["state_key"] for e in page.json["state"]}, {"@alice:example.com"})

    async def test_an_event_and_those_around_it(self) -> None:
        events = [await self.say(self.alice, str(number)) for number in range(6)]
        found = await self.bob.ask("GET", f"{self.room}/context/{quote(events[3])}?limit=4")
        self.assertEqual(found.json["event"]["event_id"], events[3])
        before = [e["event_id"] for e in found.json["events_before"]]
        after = [e["event_id"] for e in found.json["events_after"]]
        self.assertEqual((before, after), ([events[2], events[1]], [events[4], events[5]]))
        one = await self.bob.ask("GET", f"{self.room}/event/{quote(events[0])}")
        self.assertEqual(one.json["content"]["body"], "0")
        missing = await self.bob.ask("GET", f"{self.room}/event/$nothing")
        self.assert_code(missing, 404, "M_NOT_FOUND")

    async def test_states_and_members(self) -> None:
        state = await self.bob.ask("GET", f"{self.room}/state")
        keys = {(e["type"], e["state_key"]) for e in state.json}
        self.assertIn(("m.room.member", "@alice:example.com"), keys)
        name = await self.bob.ask("GET", f"{self.room}/state/m.room.name")
        self.assertEqual(name.json, {"name": "Tea"})
        absent = await self.bob.ask("GET", f"{self.room}/state/m.room.topic/")
        self.assert_code(absent, 404, "M_NOT_FOUND")
        members = await self.bob.ask("GET", f"{self.room}/members?membership=join")
        self.assertEqual(
            {e["state_key"] for e in members.json["chunk"]},
            {"@alice:example.com", "@bob:example.com"},
        )
        joined = await self.bob.ask("GET", f"{self.room}/joined_members")
        self.assertEqual(set(joined.json["joined"]), {"@alice:example.com", "@bob:example.com"})
        rooms = await self.bob.ask("GET", "/joined_rooms")
        self.assertEqual(rooms.json, {"joined_rooms": [self.room_id]})

    async def test_a_user_who_left_reads_up_to_the_leave(self) -> None:
        await self.say(self.alice, "before")
        await self.bob.ask("POST", f"{self.room}/leave", {})
        after = await self.say(self.alice, "after")
        await self.alice.ask("PUT", f"{self.room}/state/m.room.name/", {"name": "Coffee"})
        page = await self.bob.ask("GET", f"{self.room}/messages?dir=b&limit=100")
        bodies = [e["content"].get("body") for e in page.json["chunk"]]
        self.assertIn("before", bodies)
        self.assertNotIn("after", bodies)
        hidden = await self.bob.ask("GET", f"{self.room}/event/{quote(after)}")
        self.assert_code(hidden, 404, "M_NOT_FOUND")
        name = await self.bob.ask("GET", f"{self.room}/state/m.room.name/")
        self.assertEqual(name.json, {"name": "Tea"})

    async def test_others_are_refused(self) -> None:
        for path in ("messages?dir=b", "state", "members", "joined_members", "context/$x"):
            reply = await self.carol.ask("GET", f"{self.room}/{path}")
            self.assert_code(reply, 403, "M_FORBIDDEN")
        unknown = await self.carol.ask("GET", "/rooms/!nothing:example.com/messages?dir=b")
        self.assert_code(unknown, 404, "M_NOT_FOUND")
        for query in ("dir=x", "dir=b&limit=0", "dir=b&from=q", "dir=b&filter=1"):
            reply = await self.bob.ask("GET", f"{self.room}/messages?{query}")
            self.assert_code(reply, 400, "M_INVALID_PARAM")
