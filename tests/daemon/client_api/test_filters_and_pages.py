"""Filters and pages of history over HTTP, compared with a plain list of the room's events."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import product
from random import Random
from typing import Any
from urllib.parse import quote

from simulator.rooms.random_rooms import EventMaker
from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.rooms import Event
from tests.daemon.client_api.posted_rooms import PostedRoomsCase

ALICE, BOB, CAROL = "@alice:a", "@bob:b", "@carol:c"

TYPES = (None, [], ["m.room.message"], ["m.*"], ["*"], ["org.example.*", "m.room.topic"], ["*.b.*"])
NOT_TYPES = (None, ["m.room.*"], ["org.example.a"], ["*"])
ODD_TYPES = (["m.room.mess[a]ge"], ["m.room.%"], ["m_room_message"], ["m.room.?essage"], ["\\*"])
SENDERS = (None, [], [ALICE], [BOB, CAROL])
NOT_SENDERS = (None, [BOB], [ALICE, BOB, CAROL])
URLS = (None, True, False)


def is_wanted(event: Event, wanted: Mapping[str, Any]) -> bool:
    """Whether a filter allows an event, as the specification describes it."""

    def matches(patterns: list[str]) -> bool:
        texts = [re.escape(each).replace(r"\*", ".*") for each in patterns]
        return any(re.fullmatch(each, event.type, re.DOTALL) for each in texts)

    if event.sender in wanted.get("not_senders", []) or matches(wanted.get("not_types", [])):
        return False
    if "senders" in wanted and event.sender not in wanted["senders"]:
        return False
    if "types" in wanted and not matches(wanted["types"]):
        return False
    return wanted.get("contains_url") in (None, "url" in event.content)


class FiltersAndPages(PostedRoomsCase):
    """A room with events of many types, in which Alice is."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        maker = EventMaker("10", "filtered")
        create = maker.create
        joins = {"membership": "join"}
        joined = maker.event("m.room.member", joins, [create], [create], ALICE, ALICE)
        public = {"join_rule": "public"}
        rules = maker.event("m.room.join_rules", public, [joined], [create, joined], ALICE, "")
        self.events = [create, joined, rules]
        members = {ALICE: joined}
        for user in (BOB, CAROL):
            last, cites = self.events[-1], [create, rules]
            members[user] = maker.event("m.room.member", joins, [last], cites, user, user)
            self.events.append(members[user])
        rng = Random(3)
        kinds = ("m.room.message", "org.example.a", "org.example.b.c", "m.sticker", "odd\ntype.b.x")
        for number in range(30):
            user = rng.choice([ALICE, BOB, CAROL])
            content: dict[str, Any] = {"body": str(number)}
            if rng.random() < 0.4:
                content["url"] = rng.choice(["mxc://a/b", None, 1])
            cites = [create, members[user]]
            kind = rng.choice(kinds)
            self.events.append(maker.event(kind, content, [self.events[-1]], cites, user))
        self.room_id = maker.room_id
        self.path = f"/rooms/{quote(self.room_id)}"
        await self.post(self.events, "10")
        self.alice = self.client(ALICE)
        self.ids = [each.event_id for each in self.events]

    async def test_what_is_plain_is_read_without_a_transaction(self) -> None:
        names: list[str] = []
        run = PostgresDatabase.run

        async def counted(database: PostgresDatabase, name: str, *more: Any, **named: Any) -> Any:
            names.append(name)
            return await run(database, name, *more, **named)

        self.patch(PostgresDatabase, "run", counted)
        members = await self.alice.get(f"{self.path}/members")
        self.assertEqual(len(members["chunk"]), 3)
        page = await self.alice.get(f"{self.path}/messages", dir="b", limit=5)
        self.assertEqual([each["event_id"] for each in page["chunk"]], self.ids[:-6:-1])
        context = await self.alice.get(f"{self.path}/context/{quote(self.ids[9])}", limit=2)
        self.assertEqual(context["events_after"][0]["event_id"], self.ids[10])
        self.assertFalse({"members", "messages", "context"} & {*names}, names)
        await self.alice.get(f"{self.path}/messages", dir="f", limit=5)
        self.assertIn("messages", names)

    def filters(self) -> list[dict[str, Any]]:
        """Filters of all kinds: some combinations of each."""
        names = ("types", "not_types", "senders", "not_senders", "contains_url")
        every = list(product(TYPES, NOT_TYPES, SENDERS, NOT_SENDERS, URLS))
        chosen = Random(5).sample(every, 40)
        chosen += [(odd, None, None, None, None) for odd in ODD_TYPES]
        return [
            {name: value for name, value in zip(names, each, strict=True) if value is not None}
            for each in chosen
        ]

    async def test_filters_allow_what_the_specification_says(self) -> None:
        seen = set()
        for wanted in self.filters():
            expected = [each.event_id for each in self.events if is_wanted(each, wanted)]
            text = json.dumps(wanted)
            back = await self.alice.pages(self.room_id, filter=text, limit=4)
            self.assertEqual([e["event_id"] for e in back], expected[::-1], wanted)
            forth = await self.alice.pages(self.room_id, direction="f", filter=text, limit=100)
            self.assertEqual([e["event_id"] for e in forth], expected, wanted)
            seen.add(len(expected))
        self.assertGreater(len(seen), 4)

    async def test_filters_of_syncs_choose_rooms_events_and_state(self) -> None:
        for wanted in self.filters()[::4]:
            limited = {"timeline": {"limit": 3, **wanted}, "state": wanted}
            answer = await self.alice.get(
                "/sync", filter=json.dumps({"room": limited}), use_state_after="true"
            )
            room = answer["rooms"]["join"][self.room_id]
            expected = [each for each in self.events if is_wanted(each, wanted)]
            found = [e["event_id"] for e in room["timeline"]["events"]]
            self.assertEqual(found, [each.event_id for each in expected][-3:], wanted)
            self.assertEqual(room["timeline"]["limited"], len(expected) > 3, wanted)
            state = {e["event_id"] for e in room["state_after"]["events"]}
            self.assertEqual(
                state, {e.event_id for e in expected if e.state_key is not None}, wanted
            )
        for rooms, is_there in (
            ({"rooms": [self.room_id]}, True),
            ({"rooms": []}, False),
            ({"rooms": ["!other:a"]}, False),
            ({"not_rooms": [self.room_id]}, False),
            ({"rooms": [self.room_id], "not_rooms": [self.room_id]}, False),
        ):
            answer = await self.alice.get("/sync", filter=json.dumps({"room": rooms}))
            self.assertEqual("rooms" in answer, is_there, rooms)

    async def test_pages_begin_and_end_anywhere(self) -> None:
        tokens = [await self.token_after(None)]
        while tokens[-1] is not None:
            tokens.append(await self.token_after(tokens[-1]))
        places = dict(enumerate(each for each in tokens if each is not None))
        rng = Random(9)
        for _ in range(60):
            one, two = rng.choice(list(places)), rng.choice(list(places))
            # Token number n stands after the n + 1 newest events, going back.
            older, newer = max(one, two) + 1, min(one, two) + 1
            between = self.ids[len(self.ids) - older : len(self.ids) - newer]
            limit = rng.choice([1, 2, 5, 100])
            back = await self.alice.pages(
                self.room_id, places[newer - 1], places[older - 1], limit=limit
            )
            self.assertEqual([e["event_id"] for e in back], between[::-1], (older, newer))
            forth = await self.alice.pages(
                self.room_id, places[older - 1], places[newer - 1], "f", limit=limit
            )
            self.assertEqual([e["event_id"] for e in forth], between, (older, newer))
        rest = await self.alice.pages(self.room_id, places[7], direction="f")
        self.assertEqual([e["event_id"] for e in rest], self.ids[-8:])

    async def token_after(self, token: str | None) -> str | None:
        """The token after one more event, going back; None at the beginning."""
        page = await self.alice.get(f"{self.path}/messages", dir="b", from_=token, limit=1)
        end = page.get("end")
        return None if end is None else str(end)
