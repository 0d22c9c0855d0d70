"""Sliding sync over HTTP, at a master in this process."""

from __future__ import annotations

import json
from typing import Any
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


def bodies(room: Any) -> list[str]:
    """The messages of a timeline."""
    events = room.get("timeline", room.get("timeline_events", []))
    return [e["content"]["body"] for e in events if e["type"] == "m.room.message"]


def entries(room: Any) -> dict[tuple[str, str], Any]:
    """The contents of a required state, by key."""
    return {
        (e["type"], e["state_key"]): e.get("content") for e in room.get("required_state", ())
    }


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
