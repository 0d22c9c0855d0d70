"""Answers have the shapes of those that a real server gave; see ``tests/data/federation/README.md``."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.daemon.federation.listener_case import FEDERATION
from tests.daemon.federation.test_resident_server import HandshakeCase
from tests.federation.recordings import VERSIONS, recording
from tests.services.federation.inbound_case import BOB, CAROL, HERE, OTHER, REMOTE

#: What a server may leave out, or add by itself.
_OPTIONAL = {"unsigned", "origin"}


def shape(value: Any) -> Any:
    """The members of an answer, and the members of the events in it; contents do not count."""
    if isinstance(value, list):
        if value and isinstance(value[0], int):
            return [value[0], shape(value[1])]
        found = {str(shape(each)) for each in value}
        return sorted(found)
    if not isinstance(value, dict):
        return type(value).__name__
    if "origin_server_ts" in value and "content" in value:
        return event_shape(value)
    return {name: shape(each) for name, each in value.items() if name not in _OPTIONAL}


def event_shape(event: dict[str, Any]) -> str:
    """What an event has, apart from what only some have."""
    kinds = {name: type(each).__name__ for name, each in event.items()}
    for name in (*_OPTIONAL, "state_key", "redacts"):
        kinds.pop(name, None)
    return str(sorted(kinds.items()))


def events_of(value: Any) -> set[str]:
    """The shapes of all events in a shape."""
    return set(value) if isinstance(value, list) else set()


class RecordedShapes(HandshakeCase):
    """A room of each version that was recorded."""

    timeout = 300

    def assert_like(self, ours: Any, theirs: Any, what: str) -> None:
        """Two answers have the same members; their events are of kinds that the other has."""
        mine, recorded = shape(ours), shape(theirs)
        if not isinstance(recorded, dict):
            self.assertEqual(mine, recorded, what)
            return
        self.assertEqual(set(mine), set(recorded), what)
        for name, expected in recorded.items():
            if isinstance(expected, list):
                self.assertLessEqual(events_of(mine[name]), events_of(expected), (what, name))
            else:
                self.assertEqual(mine[name], expected, (what, name))

    async def test_answers_of_all_versions(self) -> None:
        for version in VERSIONS:
            recorded = {
                name: recording(version, f"inbound/{name}")["body"]
                for name in (
                    *("make_join", "send_join-full", "send_join-partial", "state", "state_ids"),
                    *("event", "event_auth", "backfill", "get_missing_events"),
                )
            }
            for name, answer in (await self.answers(version)).items():
                self.assert_like(answer, recorded[name], f"{name} of version {version}")

    async def answers(self, version: str) -> dict[str, Any]:
        """Our answers to the same requests."""
        room_id = await self.create(room_version=version, name=f"room {version}")
        room = quote(room_id, safe="")
        made = (await self.make("join", room_id, CAROL, version)).json
        carol = self.complete(made["event"], OTHER, version)
        partial = await self.put("send_join", carol, query="?omit_members=true")
        bob = self.complete(
            (await self.make("join", room_id, BOB, version)).json["event"], REMOTE, version
        )
        full = await self.put("send_join", bob)
        sent = [await self.say_here(room_id, f"{number}") for number in range(4)]
        at = f"{room}?event_id={quote(sent[-1])}"
        asked = {"earliest_events": sent[:1], "latest_events": sent[-1:]}
        paths = {
            "state": f"state/{at}",
            "state_ids": f"state_ids/{at}",
            "event": f"event/{quote(sent[0])}",
            "event_auth": f"event_auth/{room}/{quote(sent[0])}",
            "backfill": f"backfill/{room}?v={quote(sent[-1])}&limit=20",
        }
        answers = {
            name: (await self.ask("GET", f"{FEDERATION}/v1/{path}")).json
            for name, path in paths.items()
        }
        uri = f"{FEDERATION}/v1/get_missing_events/{room}"
        return {
            **answers,
            "make_join": made,
            "send_join-partial": partial.json,
            "send_join-full": full.json,
            "get_missing_events": (await self.ask("POST", uri, asked)).json,
        }

    async def test_refusals(self) -> None:
        room_id = await self.create()
        await self.send(room_id, "m.room.member", {"membership": "ban"}, BOB)
        sent = await self.say_here(room_id)
        room = quote(room_id, safe="")
        ours = {
            "make_join banned": await self.make("join", room_id),
            "make_join wrong version": await self.make("join", room_id, CAROL, "6"),
            "make_join unknown room": await self.make("join", "!nosuch:here.test"),
            "state of a server not in the room": await self.ask(
                "GET", f"{FEDERATION}/v1/state/{room}?event_id={quote(sent)}"
            ),
            "backfill of a server not in the room": await self.ask(
                "GET", f"{FEDERATION}/v1/backfill/{room}?v={quote(sent)}"
            ),
        }
        theirs = recording("10", "inbound/refusals")
        for name, answer in ours.items():
            self.assertEqual(answer.status, theirs[name]["status"], name)
            expected = theirs[name]["body"]
            self.assertEqual(answer.json["errcode"], expected["errcode"], name)
            self.assertEqual(set(answer.json), set(expected), name)
        many = {"pdus": [{}] * 51}
        answer = await self.ask("PUT", f"{FEDERATION}/v1/send/many", many)
        self.assertEqual(answer.status, theirs["51 PDUs"]["status"])

    async def test_a_recorded_transaction_is_read_to_its_end(self) -> None:
        for version in VERSIONS:
            for number, recorded in enumerate(recording(version, "inbound/transactions")):
                uri = f"{FEDERATION}/v1/send/{version}-{number}"
                answer = await self.ask("PUT", uri, recorded)
                self.assertEqual(answer.status, 200, answer.body)
                count = len(recorded.get("pdus", ()))
                self.assertEqual(len(answer.json["pdus"]), count, HERE)
