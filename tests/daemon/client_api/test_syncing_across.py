"""Syncs of real processes: clients go from one to another while all are restarted."""

from __future__ import annotations

from typing import Any
from urllib.error import URLError
from urllib.parse import quote

from tests.daemon.client_api.http_client import ClientReply, HttpMatrixClient
from tests.daemon.client_api.test_processes import ProcessesCase

FILTER = quote('{"room":{"timeline":{"limit":100}}}')


class AskingCase(ProcessesCase):
    """Requests at processes that may be away."""

    async def ask(self, client: HttpMatrixClient, method: str, path: str, body: Any) -> ClientReply:
        """A request that is made again while its process is away."""
        while True:
            try:
                reply = await client.ask(method, path, body)
            except (OSError, URLError):
                await self.scheduler.sleep(0.05)
                continue
            if reply.status not in (502, 503):
                return reply
            await self.scheduler.sleep(0.05)


class SyncsAcrossProcesses(AskingCase):
    """Alice sends through any process, and Bob syncs at any."""

    timeout = 300

    async def test_every_message_is_told_once_whatever_is_restarted(self) -> None:
        names = ("master", "w1", "w2")
        for name in names:
            await self.begin_process(name)
        alice, bob = await self.client("master", "alice"), await self.client("w1", "bob")
        rooms = list((await self.rooms_of(alice)).values())
        for room_id in rooms:
            await self.ask(bob, "POST", f"/join/{quote(room_id)}", {})
        first = await self.ask(bob, "GET", "/sync", None)
        since = first.json["next_batch"]
        sent: list[str] = []
        seen: list[str] = []
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
            since = await self.take(bob, since, seen, rooms, "0")
        while set(sent) - set(seen):
            since = await self.take(bob, since, seen, rooms, "5000")
        self.assertEqual(len(seen), len(set(seen)))
        self.assertEqual(set(seen), set(sent))

    async def take(
        self, client: HttpMatrixClient, since: str, seen: list[str], rooms: list[str], timeout: str
    ) -> str:
        """Sync once, and note the messages."""
        query = f"since={quote(since)}&timeout={timeout}&filter={FILTER}"
        reply = await self.ask(client, "GET", f"/sync?{query}", None)
        self.assertEqual(reply.status, 200, reply)
        joined = reply.json.get("rooms", {}).get("join", {})
        for room_id, room in joined.items():
            self.assertIn(room_id, rooms)
            self.assertFalse(room["timeline"]["limited"])
            seen += [
                e["event_id"] for e in room["timeline"]["events"] if e["type"] == "m.room.message"
            ]
        return str(reply.json["next_batch"])
