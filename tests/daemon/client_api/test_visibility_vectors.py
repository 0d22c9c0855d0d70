"""What users see of the rooms of the visibility vectors, through the endpoints of a process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from synrepl.rooms import Event, Room, StateKey, event_of, redact, room_version
from tests.daemon.client_api.posted_rooms import PostedRoomsCase, RoomClient, state_ids
from tests.rooms.test_visibility import ROOMS, RoomWithStates, changed
from tests.rooms.vector_files import lines

#: Rooms whose cases are tried, at most; there are 24, and `tox -e rooms` takes them all.
COUNT = int(os.environ.get("SYNREPL_ROOM_EXAMPLES", "3"))


class VectorRoom(RoomWithStates):
    """A room of the vectors, and who was in it.

    :ivar events: as they come
    :ivar state: at the end, resolved where several events are the newest
    """

    def __init__(self, row: dict[str, Any]) -> None:
        super().__init__(row)
        version = room_version(row["room_version"])
        self.events = [event_of(signed(line["event"]), version) for line in row["events"]]
        room = Room(version)
        for each in self.events:
            room.receive(each)
        current = room.current_state().items()
        self.state: dict[StateKey, Event] = {key: room[each].event for key, each in current}

    def membership(self, user: str) -> str:
        """A user's membership at the end."""
        event = self.state.get(("m.room.member", user))
        return "leave" if event is None else str(event.membership)

    def leave(self, user: str) -> str | None:
        """The ID of the event with which a user left; None if there is none."""
        event = self.state.get(("m.room.member", user))
        return None if event is None else event.event_id

    def was_joined(self, user: str) -> bool:
        """Whether a user was in the room at any time."""
        return any(
            audience.target == user
            and each.membership == "join"
            and audience.hidden_because is None
            for each, _, audience in self.accepted
        )


def signed(event: dict[str, Any]) -> dict[str, Any]:
    """An event of the vectors, which have no signatures, with some that nobody checks."""
    users = [event["sender"], event["content"].get("join_authorised_via_users_server", ":")]
    servers = {user.partition(":")[2] for user in users} - {""}
    return {**event, "signatures": {server: {"ed25519:1": "x"} for server in servers}}


class VisibilityOverHttp(PostedRoomsCase):
    """Each case that can be: whether somebody only looks in follows from the room here."""

    async def test_pages_syncs_and_single_events_have_what_the_vectors_say(self) -> None:
        tried = 0
        rows = list(lines(ROOMS))
        # Rooms of one kind follow one another: take some of each.
        rows.sort(key=lambda row: (row["id"].rpartition("-")[2], row["id"]))
        rows = rows[:: max(1, len(rows) // COUNT)]
        for row in rows:
            room = VectorRoom(row)
            await self.post(room.events, row["room_version"])
            for case in row["client_cases"]:
                if case["is_peeking"] is room.was_joined(case["user"]) or case["ignored_users"]:
                    continue
                await self.erased(case["erased_senders"])
                await self.check(row["room_id"], room, case)
                tried += 1
        self.assertGreater(tried, 3 * len(rows))

    async def erased(self, users: Sequence[str]) -> None:
        """Let these users, and no others, be erased."""
        await self.sql("DELETE FROM synrepl._erased_users")
        await self.sql("INSERT INTO synrepl._erased_users SELECT unnest(%s::text[])", list(users))

    async def check(self, room_id: str, room: VectorRoom, case: dict[str, Any]) -> None:
        """One case."""
        client, hidden = self.client(case["user"]), set(case["hidden"])
        path = f"/rooms/{quote(room_id)}"
        membership = room.membership(case["user"])
        if case["is_peeking"] and not self.is_world_readable(room):
            for endpoint in ("messages", "state", "members", "joined_members"):
                reply = await client.try_get(f"{path}/{endpoint}", dir="b")
                self.assertEqual((reply.status, reply.errcode), (403, "M_FORBIDDEN"))
            return
        visible = [event for event, _, _ in room.accepted if event.event_id not in hidden]
        memberships = dict(
            zip(
                [each.event_id for each in visible],
                case["membership_at_visible_events"],
                strict=True,
            )
        )
        if not case["is_peeking"] and membership != "join":  # up to the leave
            ids = [event.event_id for event, _, _ in room.accepted]
            end = ids.index(room.leave(case["user"]) or ids[-1])
            visible = [each for each in visible if ids.index(each.event_id) <= end]
        events = {each.event_id: each for each in visible}
        found = (await client.pages(room_id, limit=7))[::-1]
        self.assertEqual(sorted(e["event_id"] for e in found), sorted(events), case)
        forwards = await client.pages(room_id, direction="f", limit=9)
        self.assertEqual([e["event_id"] for e in forwards], [e["event_id"] for e in found])
        redacted = set(case["visible_redacted"])
        applied = {each.redacts for each, _, _ in room.accepted if each.redacts is not None}
        for told in found:
            event = events[told["event_id"]]
            self.assertEqual(told["unsigned"]["membership"], memberships[event.event_id])
            whole = event.content
            if event.event_id in redacted:
                self.assertTrue(changed(event))
                whole = redact(event.fields, event.version)["content"]
            elif event.event_id in applied and "redacted_because" in told["unsigned"]:
                continue
            content = dict(told["content"])
            if event.redacts is not None:  # where clients of all room versions find it
                self.assertEqual(content.pop("redacts"), event.redacts)
                whole = {name: value for name, value in whole.items() if name != "redacts"}
            self.assertEqual(content, whole, event.event_id)
        await self.check_single(client, path, room, events)
        if membership == "join":
            await self.check_member(client, room_id, room, set(events))

    def is_world_readable(self, room: VectorRoom) -> bool:
        """Whether everybody may read the room now."""
        event = room.state.get(("m.room.history_visibility", ""))
        return event is not None and event.content.get("history_visibility") == "world_readable"

    async def check_single(
        self, client: RoomClient, path: str, room: VectorRoom, events: dict[str, Event]
    ) -> None:
        """Events by their IDs, and with those around them."""
        for event, _, _ in room.accepted[::6]:
            for endpoint in ("event", "context"):
                reply = await client.try_get(f"{path}/{endpoint}/{quote(event.event_id, safe='')}")
                if event.event_id not in events:
                    self.assertEqual((reply.status, reply.errcode), (404, "M_NOT_FOUND"))
                    continue
                self.assertEqual(reply.status, 200, reply)
                if endpoint == "event":
                    self.assertEqual(reply.json["event_id"], event.event_id)
                    continue
                around = [*reply.json["events_before"], *reply.json["events_after"]]
                self.assertTrue({e["event_id"] for e in around} <= events.keys())

    async def check_member(
        self, client: RoomClient, room_id: str, room: VectorRoom, expected: set[str]
    ) -> None:
        """What a user in the room gets of its state, and by a sync and the pages before it."""
        path = f"/rooms/{quote(room_id)}"
        state = {key: each.event_id for key, each in room.state.items()}
        self.assertEqual(state_ids(await client.get(f"{path}/state")), state)
        members = (await client.get(f"{path}/members", membership="join"))["chunk"]
        joined = {
            key[1]
            for key, each in room.state.items()
            if key[0] == "m.room.member" and each.membership == "join"
        }
        self.assertEqual({e["state_key"] for e in members}, joined)
        self.assertEqual(
            set((await client.get(f"{path}/joined_members"))["joined"]),
            joined,
        )
        sync = await client.get("/sync", use_state_after="true")
        told = sync["rooms"]["join"][room_id]
        self.assertEqual(state_ids(told["state_after"]["events"]), state)
        older = await client.pages(room_id, told["timeline"]["prev_batch"], limit=11)
        ids = [e["event_id"] for e in (*told["timeline"]["events"], *older)]
        self.assertEqual(len(ids), len(set(ids)))
        self.assertEqual(set(ids), expected)
