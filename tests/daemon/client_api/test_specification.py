"""The specification's own examples: requests that are accepted or refused as it says, and the shapes of answers."""

from __future__ import annotations

import json
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

from tests.daemon.client_api.http_client import HttpMatrixClient
from tests.daemon.client_api.test_syncing import SyncCase

EXAMPLES = json.loads(Path(__file__).with_name("specification.json").read_text())
SHAPES = EXAMPLES["shapes"]

_KINDS: dict[str, type] = {"text": str, "boolean": bool, "object": dict}


def misfits(value: Any, shape: Any, path: str = "$") -> list[str]:
    """Where a JSON value is not of a shape.

    A name with ``?`` may be missing, ``*`` stands for any name, a list has one element for all of its own.
    """
    if isinstance(shape, str):
        if shape in SHAPES:
            return misfits(value, SHAPES[shape], path)
        if shape == "any":
            return []
        if shape == "integer":
            is_fit = isinstance(value, int) and not isinstance(value, bool)
        else:
            is_fit = isinstance(value, _KINDS[shape])
        return [] if is_fit else [f"{path}: {value!r} is no {shape}"]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{path}: {value!r} is no list"]
        return [e for n, each in enumerate(value) for e in misfits(each, shape[0], f"{path}[{n}]")]
    if not isinstance(value, dict):
        return [f"{path}: {value!r} is no object"]
    required = {name for name in shape if not name.endswith("?")} - {"*"}
    found = [f"{path}.{name} is missing" for name in sorted(required - value.keys())]
    for name, each in value.items():
        inner = shape.get(name, shape.get(f"{name}?", shape.get("*")))
        if inner is None:
            found.append(f"{path}.{name} is unknown")
        else:
            found += misfits(each, inner, f"{path}.{name}")
    return found


class SpecificationExamples(SyncCase):
    """Each request of the data, as Bob, who is in a room, invited to another, and has left a third one."""

    client_api = ", rate_limits: {requests: {per_second: 10000, burst: 100000}}"

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        bob = self.bob.user_id
        for number in range(12):
            await self.say(self.alice, f"message {number}")
        self.event = await self.say(self.alice, "in the middle")
        await self.say(self.alice, "the last one")
        other = await self.alice.create_room(name="Others")
        await self.alice.create_room(name="Party", invite=[bob])
        left = await self.alice.create_room(preset="public_chat", name="Left")
        for path in (f"/join/{quote(left)}", f"/rooms/{quote(left)}/leave"):
            self.assert_code(await self.bob.ask("POST", path, {}), 200)
        knocked = await self.alice.create_room(
            name="Knock",
            initial_state=[{"type": "m.room.join_rules", "content": {"join_rule": "knock"}}],
        )
        self.assert_code(await self.bob.ask("POST", f"/knock/{quote(knocked)}", {}), 200)
        stored = await self.bob.ask("POST", f"/user/{quote(bob)}/filter", EXAMPLES["filter"])
        first = await self.sync(self.bob)
        self.known = {
            "ROOM": self.room_id,
            "OTHER_ROOM": other,
            "EVENT": self.event,
            "USER": bob,
            "NEXT_BATCH": first["next_batch"],
            "PREV_BATCH": self.joined(first)["timeline"]["prev_batch"],
            "FILTER_ID": stored.json["filter_id"],
            "FILTER_JSON": json.dumps(EXAMPLES["filter"]),
        }

    async def test_requests_are_answered_as_the_specification_has_it(self) -> None:
        encoded = {name: quote(value, safe="") for name, value in self.known.items()}
        for example in EXAMPLES["requests"]:
            with_name = example["name"]
            client = self.alice if example.get("as") == "alice" else self.bob
            if "token" in example:
                client = HttpMatrixClient(self.clients_port, example["token"])
            body: Any = example.get("body")
            if body == "$FILTER":
                body = EXAMPLES["filter"]
            if "raw" in example:
                body = example["raw"].encode()
            path = Template(example["path"]).safe_substitute(encoded)
            reply = await client.ask(example["method"], path, body)
            self.assertEqual(reply.status, example["status"], (with_name, reply))
            if "errcode" in example:
                self.assertEqual(reply.errcode, example["errcode"], (with_name, reply))
                self.assertIsInstance(reply.json["error"], str, with_name)
                self.assertEqual(reply.headers["content-type"], "application/json")
            else:
                self.assertEqual(misfits(reply.json, example["shape"]), [], with_name)

    async def test_a_sync_has_rooms_in_each_of_their_forms(self) -> None:
        include = '{"room":{"include_leave":true}}'
        answer = await self.sync(self.bob, filter=include)
        self.assertEqual(misfits(answer, "sync"), [])
        self.assertEqual(set(answer["rooms"]), {"join", "invite", "knock", "leave"})
        for name, part in (("invite", "invite_state"), ("knock", "knock_state")):
            (room,) = answer["rooms"][name].values()
            types = {each["type"] for each in room[part]["events"]}
            self.assertLessEqual({"m.room.create", "m.room.name", "m.room.member"}, types)

    async def test_a_stored_filter_is_as_it_was_uploaded(self) -> None:
        path = f"/user/{quote(self.bob.user_id)}/filter/{self.known['FILTER_ID']}"
        self.assertEqual((await self.bob.ask("GET", path)).json, EXAMPLES["filter"])
        answer = await self.sync(self.bob, filter=self.known["FILTER_ID"])
        for room in answer["rooms"]["join"].values():
            events = room["timeline"]["events"]
            self.assertLessEqual(len(events), 10)
            for each in events:
                self.assertEqual(each["type"], "m.room.message")
                self.assertLessEqual(set(each), {"type", "content", "sender"})

    async def test_the_context_has_the_state_at_its_last_event(self) -> None:
        path = f"{self.room}/state/m.room.topic/"
        self.assert_code(await self.alice.ask("PUT", path, {"topic": "later"}), 200)
        found = await self.bob.ask("GET", f"{self.room}/context/{quote(self.event)}?limit=2")
        types = {each["type"] for each in found.json["state"]}
        self.assertLessEqual({"m.room.create", "m.room.member", "m.room.name"}, types)
        self.assertNotIn("m.room.topic", types)
        wanted = quote('{"types":["m.room.name"]}')
        one = await self.bob.ask(
            "GET", f"{self.room}/context/{quote(self.event)}?limit=2&filter={wanted}"
        )
        self.assertEqual([each["type"] for each in one.json["state"]], ["m.room.name"])
        lazy = quote('{"lazy_load_members":true}')
        some = await self.bob.ask(
            "GET", f"{self.room}/context/{quote(self.event)}?limit=2&filter={lazy}"
        )
        members = {e["state_key"] for e in some.json["state"] if e["type"] == "m.room.member"}
        self.assertEqual(members, {self.alice.user_id})

    def test_misfits_are_found(self) -> None:
        right = {"chunk": [], "start": "x"}
        self.assertEqual(misfits(right, "messages"), [])
        for wrong in (
            {"chunk": []},
            {"chunk": {}, "start": "x"},
            {"chunk": [{}], "start": "x"},
            {"chunk": [], "start": 1},
            {**right, "more": 1},
            [],
        ):
            self.assertTrue(misfits(wrong, "messages"), wrong)
