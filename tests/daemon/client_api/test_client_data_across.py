"""Receipts, typing, account data and messages to devices, through processes that are restarted meanwhile."""

from __future__ import annotations

from typing import Any
from urllib.error import URLError
from urllib.parse import quote

from tests.daemon.client_api.http_client import ClientReply, HttpMatrixClient
from tests.daemon.client_api.test_processes import STREAMS, ProcessesCase

NAMES = ("master", "w1", "w2")


class ClientDataAcrossProcesses(ProcessesCase):
    """Alice changes things through any process, and Bob syncs at any. Each stream has other writers."""

    timeout = 300
    catalogue = (*STREAMS, "account_data", "receipts", "typing", "presence", "to_device")
    stream_writers = (
        "{events: [master, w1, w2], backfill: [master, w1, w2], caches: [master, w1, w2],"
        " account_data: [w1, w2], receipts: [w1], presence: [w2], to_device: [master, w2]}"
    )

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        for name in NAMES:
            await self.begin_process(name)
        self.alice, self.bob = await self.client("master", "alice"), await self.client("w1", "bob")
        self.room_id = await self.alice.create_room(preset="public_chat")
        self.room = f"/rooms/{quote(self.room_id)}"
        await self.ask(self.bob, "POST", f"/join/{quote(self.room_id)}", {})

    async def ask(
        self, client: HttpMatrixClient, method: str, path: str, body: Any = None, **headers: str
    ) -> ClientReply:
        """A request that is made again while a process is away."""
        while True:
            try:
                reply = await client.ask(method, path, body, **headers)
            except (OSError, URLError):
                await self.scheduler.sleep(0.05)
                continue
            if reply.status not in (502, 503):
                self.assertEqual(reply.status, 200, (path, reply))
                return reply
            await self.scheduler.sleep(0.05)

    async def sync(self, client: HttpMatrixClient, since: str | None, **headers: str) -> Any:
        """Sync once."""
        query = "" if since is None else f"&since={quote(since)}"
        return (await self.ask(client, "GET", f"/sync?timeout=0{query}", **headers)).json

    async def test_what_is_written_at_one_process_is_told_at_another(self) -> None:
        event = (await self.ask(self.alice, "PUT", f"{self.room}/send/m.test/1", {})).json[
            "event_id"
        ]
        bob, alice = quote(self.bob.user_id), quote(self.alice.user_id)
        device = (await self.ask(self.bob, "GET", "/account/whoami")).json["device_id"]
        for place, name in enumerate(NAMES):
            sent = await self.ask(self.alice, "PUT", f"{self.room}/send/m.test/{name}", {})
            event = sent.json["event_id"]
            for client, method, path, body, found in (
                (self.alice, "POST", f"{self.room}/receipt/m.read/{quote(event)}", {}, "m.receipt"),
                (
                    *(self.alice, "PUT", f"/user/{alice}/account_data/org.test", {"n": place}),
                    "org.test",
                ),
                (
                    self.alice,
                    "PUT",
                    f"/user/{alice}/rooms/{quote(self.room_id)}/tags/u.{name}",
                    {},
                    "m.tag",
                ),
                (
                    *(self.alice, "PUT", f"/sendToDevice/m.test/{name}"),
                    {"messages": {self.bob.user_id: {device: {"n": place}}}},
                    "m.test",
                ),
                (
                    *(self.bob, "PUT", f"/presence/{bob}/status"),
                    {"presence": "online", "status_msg": name},
                    name,
                ),
            ):
                at, reader = NAMES[(place + 1) % 3], self.bob
                if found in ("org.test", "m.tag", name):
                    reader = self.alice
                client.port = reader.port = self.clients[at]
                since = (await self.sync(reader, None))["next_batch"]
                client.port = self.clients[name]
                written = await self.ask(client, method, path, body)
                reader.port = self.clients[at]
                position = written.headers["x-synrepl-position"]
                answer = await self.sync(reader, since, X_Synrepl_Position=position)
                self.assertIn(found, str(answer), (name, path))

    async def test_who_types_is_told_at_each_process(self) -> None:
        path = f"{self.room}/typing/{quote(self.alice.user_id)}"
        for place, name in enumerate(NAMES):
            self.bob.port = self.clients[NAMES[(place + 1) % 3]]
            since = (await self.sync(self.bob, None))["next_batch"]
            self.alice.port = self.clients[name]
            for typing in (True, False):
                await self.ask(self.alice, "PUT", path, {"typing": typing, "timeout": 60_000})
                told: list[Any] = []
                while not told:  # the process may still be behind with other things
                    query = f"since={quote(since)}&timeout=20000"
                    answer = (await self.ask(self.bob, "GET", f"/sync?{query}")).json
                    since = answer["next_batch"]
                    room = answer.get("rooms", {}).get("join", {}).get(self.room_id, {})
                    told = room.get("ephemeral", {}).get("events", [])
                users = [self.alice.user_id] if typing else []
                self.assertEqual([each["content"] for each in told], [{"user_ids": users}])

    async def test_nothing_is_lost_or_repeated_whatever_is_restarted(self) -> None:
        alices = HttpMatrixClient(self.clients["w2"], self.alice.token)
        carol = await self.client("w2", "carol")
        mine = (await self.sync(alices, None))["next_batch"]
        theirs: str | None = (await self.sync(self.bob, None))["next_batch"]
        hers = (await self.sync(carol, None))["next_batch"]
        alice = quote(self.alice.user_id)
        told: list[int] = []
        receipt, tag, data = "", {}, {}
        for number in range(48):
            self.alice.port = self.clients[NAMES[number % 3]]
            self.bob.port = carol.port = self.clients[NAMES[(number // 2) % 3]]
            alices.port = self.clients[NAMES[(number // 3) % 3]]
            if number in (12, 24, 36):
                name = NAMES[number // 12 - 1]
                self.processes[name].signal("KILL" if number == 24 else "TERM")
                await self.processes[name].done()
                await self.begin_process(name)
            sent = await self.ask(self.alice, "PUT", f"{self.room}/send/m.test/{number}", {})
            event = quote(sent.json["event_id"])
            for method, path, body in (
                ("POST", f"{self.room}/receipt/m.read/{event}", {}),
                ("POST", f"{self.room}/receipt/m.read.private/{event}", {}),
                ("PUT", f"/user/{alice}/account_data/org.secret", {"n": number}),
                ("PUT", f"/user/{alice}/rooms/{quote(self.room_id)}/tags/u.x", {"order": number}),
                (
                    *("PUT", f"/sendToDevice/m.test/{number}"),
                    {"messages": {self.bob.user_id: {"*": {"n": number}}}},
                ),
            ):
                await self.ask(self.alice, method, path, body)
            for client, since in ((self.bob, theirs), (alices, mine), (carol, hers)):
                answer = await self.sync(client, since)
                room = answer.get("rooms", {}).get("join", {}).get(self.room_id, {})
                text = str(
                    [
                        answer.get("account_data"),
                        answer.get("to_device"),
                        room.get("account_data"),
                        room.get("ephemeral"),
                    ]
                )
                if client is alices:
                    mine = answer["next_batch"]
                    self.assertNotIn("to_device", answer)
                    for each in room.get("account_data", {}).get("events", []):
                        tag = each["content"]
                    for each in answer.get("account_data", {}).get("events", []):
                        data = each["content"]
                    continue
                self.assertNotIn("org.secret", text)
                self.assertNotIn("m.tag", text)
                self.assertNotIn("m.read.private", text)
                if client is carol:
                    hers = answer["next_batch"]
                    self.assertFalse({"rooms", "account_data", "to_device"} & answer.keys())
                    continue
                theirs = answer["next_batch"]
                told += [
                    e["content"]["n"] for e in answer.get("to_device", {"events": []})["events"]
                ]
                for each in room.get("ephemeral", {"events": []})["events"]:
                    if each["type"] == "m.receipt":
                        (receipt,) = each["content"]
        while len(told) < 48 or receipt != sent.json["event_id"]:
            answer = await self.sync(self.bob, theirs)
            theirs = answer["next_batch"]
            told += [e["content"]["n"] for e in answer.get("to_device", {"events": []})["events"]]
            room = answer.get("rooms", {}).get("join", {}).get(self.room_id, {})
            for each in room.get("ephemeral", {"events": []})["events"]:
                (receipt,) = each["content"]
        while data != {"n": 47} or tag != {"tags": {"u.x": {"order": 47}}}:
            answer = await self.sync(alices, mine)
            mine = answer["next_batch"]
            room = answer.get("rooms", {}).get("join", {}).get(self.room_id, {})
            for each in room.get("account_data", {}).get("events", []):
                tag = each["content"]
            for each in answer.get("account_data", {}).get("events", []):
                data = each["content"]
        self.assertEqual(sorted(told), list(range(48)))
        self.assertEqual(len(told), len(set(told)))
