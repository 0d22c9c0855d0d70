"""Sliding sync at real processes: a connection goes from one to another while all are restarted."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.daemon.client_api.http_client import HttpMatrixClient
from tests.daemon.client_api.test_sliding import OLDER, rooms_list
from tests.daemon.client_api.test_syncing_across import AskingCase

WINDOW = {"lists": {"top": rooms_list(0, 50)}}


class SlidingAcrossProcesses(AskingCase):
    """Alice sends through any process, and Bob asks any."""

    timeout = 300

    async def test_every_message_is_told_once_whatever_is_restarted(self) -> None:
        names = ("master", "w1", "w2")
        for name in names:
            await self.begin_process(name)
        alice, bob = await self.client("master", "alice"), await self.client("w1", "bob")
        rooms = list((await self.rooms_of(alice)).values())
        for room_id in rooms:
            await self.ask(bob, "POST", f"/join/{quote(room_id)}", {})
        seen: list[str] = []
        initial: list[str] = []
        everything = {"lists": {"all": rooms_list(9, 50)}}
        while len(initial) < len(rooms):  # the process may not have applied the joins yet
            first = await self.ask(bob, "POST", OLDER, everything)
            initial = list(first.json.get("rooms", ()))
        pos = first.json["pos"]
        initial.clear()
        sent: list[str] = []
        for number in range(60):
            alice.port = self.clients[names[number % 3]]
            bob.port = self.clients[names[(number // 2) % 3]]
            reply = await self.ask(
                alice,
                "PUT",
                f"/rooms/{quote(rooms[number % 2])}/send/m.room.message/t{number}",
                {"msgtype": "m.text", "body": str(number)},
            )
            self.assertEqual(reply.status, 200, reply)
            sent.append(reply.json["event_id"])
            if number in (15, 30, 45):
                name = names[number // 15 - 1]
                self.processes[name].signal("KILL" if number == 30 else "TERM")
                await self.processes[name].done()
                await self.begin_process(name)
            if number % 5 == 4:  # an answer that is lost, perhaps from another process
                await self.ask(bob, "POST", f"{OLDER}?pos={quote(pos)}", WINDOW)
                bob.port = self.clients[names[number % 3]]
            pos = await self.take(bob, pos, WINDOW, seen, initial, "0")
        for _ in range(20):
            if not set(sent) - set(seen):
                break
            pos = await self.take(bob, pos, everything, seen, initial, "2000")
        self.assertEqual(initial, [])
        self.assertEqual(len(seen), len(set(seen)))
        self.assertEqual(set(seen), set(sent))

    async def take(
        self,
        client: HttpMatrixClient,
        pos: str,
        body: dict[str, Any],
        seen: list[str],
        initial: list[str],
        timeout: str,
    ) -> str:
        """Ask once, and note the messages, and the rooms that begin anew."""
        path = f"{OLDER}?pos={quote(pos)}&timeout={timeout}"
        reply = await self.ask(client, "POST", path, body)
        self.assertEqual(reply.status, 200, reply)
        for room_id, room in reply.json.get("rooms", {}).items():
            self.assertNotIn("limited", room)
            if room.get("initial"):
                initial.append(room_id)
            seen += [
                e["event_id"] for e in room.get("timeline", ()) if e["type"] == "m.room.message"
            ]
        return str(reply.json["pos"])
