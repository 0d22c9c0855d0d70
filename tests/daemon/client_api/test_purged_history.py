"""Tokens from before a purge, and of rooms that were removed: answers that are right, or errors; nothing is skipped in silence."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.database import Transaction
from tests.daemon.client_api.http_client import HttpMatrixClient
from tests.daemon.client_api.test_syncing import SyncCase

LEFT_TOO = '{"room":{"include_leave":true}}'


class PurgedCase(SyncCase):
    """A room with a topic, and messages ``old 0`` to ``old 4``, then ``new 0`` to ``new 4``."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.database = self.master_process.running.services.reading.timelines.database
        self.maintenance = RoomMaintenance(self.database)
        self.before = (await self.sync(self.bob))["next_batch"]
        await self.set_topic("Oolong")
        self.old = [await self.say(self.alice, f"old {number}") for number in range(5)]

    async def set_topic(self, topic: str) -> None:
        """Change the topic."""
        path = f"{self.room}/state/m.room.topic/"
        self.assert_code(await self.alice.ask("PUT", path, {"topic": topic}), 200)

    async def say_new(self) -> list[str]:
        """Send the newer messages."""
        return [await self.say(self.alice, f"new {number}") for number in range(5)]

    async def purge_before(self, event_id: str) -> None:
        """Purge what is before an event."""
        point = await self.maintenance.purge_point(self.room_id, event_id)
        await self.maintenance.purge(self.room_id, point, index_check=False)

    async def page(self, client: HttpMatrixClient, query: str) -> Any:
        """A page of the room, which must be 200."""
        reply = await client.ask("GET", f"{self.room}/messages?{query}")
        self.assertEqual(reply.status, 200, reply)
        return reply.json

    def state(self, room: Any) -> dict[tuple[str, str], Any]:
        """The contents of the state at the start of a timeline."""
        return {(e["type"], e["state_key"]): e["content"] for e in room["state"]["events"]}


class TokensOfPurgedHistory(PurgedCase):
    """The history of the room is purged up to the newer messages."""

    async def test_a_sync_from_before_is_limited_and_has_the_whole_state(self) -> None:
        new = await self.say_new()
        await self.purge_before(new[2])
        answer = await self.sync(self.bob, self.before)
        room = self.joined(answer)
        self.assertEqual(self.bodies(answer), ["new 2", "new 3", "new 4"])
        self.assertTrue(room["timeline"]["limited"])
        self.assertEqual(self.state(room)["m.room.topic", ""], {"topic": "Oolong"})
        self.assertEqual(self.state(room)["m.room.member", self.bob.user_id]["membership"], "join")
        page = await self.page(self.bob, f"dir=b&from={room['timeline']['prev_batch']}")
        self.assertEqual((page["chunk"], page.get("end")), ([], None))
        later = await self.sync(self.bob, answer["next_batch"])
        self.assertNotIn("rooms", later)

    async def test_a_sync_from_behind_the_point_is_as_ever(self) -> None:
        new = await self.say_new()
        since = (await self.sync(self.bob))["next_batch"]
        await self.purge_before(new[2])
        await self.say(self.alice, "newest")
        answer = await self.sync(self.bob, since)
        room = self.joined(answer)
        self.assertEqual(self.bodies(answer), ["newest"])
        self.assertFalse(room["timeline"]["limited"])
        self.assertEqual(room["state"]["events"], [])

    async def test_state_after_has_what_purged_events_changed(self) -> None:
        new = await self.say_new()
        await self.purge_before(new[2])
        answer = await self.sync(self.bob, self.before, use_state_after="true")
        events = self.joined(answer)["state_after"]["events"]
        self.assertIn({"topic": "Oolong"}, [e["content"] for e in events])

    async def test_pages_from_purged_positions_have_what_is_left(self) -> None:
        answer = await self.sync(self.bob)
        prev_batch = self.joined(answer)["timeline"]["prev_batch"]
        amid = (await self.page(self.bob, "dir=b&limit=2"))["end"]
        new = await self.say_new()
        await self.purge_before(new[1])
        for token in (prev_batch, amid):
            page = await self.page(self.bob, f"dir=b&from={quote(token)}")
            self.assertEqual((page["chunk"], page.get("end")), ([], None))
            page = await self.page(self.bob, f"dir=f&limit=100&from={quote(token)}")
            bodies = [e["content"]["body"] for e in page["chunk"]]
            self.assertEqual(bodies, ["new 1", "new 2", "new 3", "new 4"])
        page = await self.page(self.bob, f"dir=f&limit=100&from={quote(self.before)}")
        bodies = [e["content"]["body"] for e in page["chunk"]]
        self.assertEqual(bodies, ["new 1", "new 2", "new 3", "new 4"])
        members = await self.bob.ask("GET", f"{self.room}/members?at={quote(self.before)}")
        self.assertEqual(members.status, 200, members)

    async def test_purged_events_are_not_found(self) -> None:
        new = await self.say_new()
        await self.purge_before(new[1])
        for path in ("event", "context"):
            for event_id in (self.old[0], new[0]):
                reply = await self.bob.ask("GET", f"{self.room}/{path}/{quote(event_id)}")
                self.assert_code(reply, 404, "M_NOT_FOUND")
        around = await self.bob.ask("GET", f"{self.room}/context/{quote(new[1])}?limit=20")
        self.assertEqual(around.json["events_before"], [])
        self.assertEqual(len(around.json["events_after"]), 3)

    async def test_a_user_who_left_is_told_of_the_leave_and_of_nothing_later(self) -> None:
        await self.bob.ask("POST", f"{self.room}/leave", {})
        await self.set_topic("after the leave")
        new = await self.say_new()
        left = await self.sync(self.bob, self.before)
        self.assertIn("leave", left["rooms"])
        for event_id in (self.old[3], new[3]):  # before the leave, and with it
            await self.purge_before(event_id)
            answer = await self.sync(self.bob, self.before)
            text = str(answer)
            self.assertNotIn("after the leave", text)
            self.assertNotIn("new", text.replace("news", ""))
            room = answer["rooms"]["leave"][self.room_id]
            self.assertTrue(room["timeline"]["limited"])
            initial = await self.sync(self.bob, filter=LEFT_TOO)
            self.assertNotIn("after the leave", str(initial))
        self.assertEqual(room["timeline"]["events"], [])

    async def test_a_leave_behind_the_point_is_told_with_the_state(self) -> None:
        await self.bob.ask("POST", f"{self.room}/leave", {})
        await self.set_topic("after the leave")
        await self.purge_before(self.old[3])
        room = (await self.sync(self.bob, self.before))["rooms"]["leave"][self.room_id]
        self.assertTrue(room["timeline"]["limited"])
        bodies = [e["content"].get("body") for e in room["timeline"]["events"]]
        self.assertEqual(bodies, ["old 3", "old 4", None])
        self.assertEqual(self.state(room)["m.room.topic", ""], {"topic": "Oolong"})

    async def test_an_invitation_from_before_is_still_told(self) -> None:
        since = (await self.sync(self.carol))["next_batch"]
        invite = {"user_id": self.carol.user_id}
        self.assert_code(await self.alice.ask("POST", f"{self.room}/invite", invite), 200)
        new = await self.say_new()
        await self.purge_before(new[2])
        self.assertIn(self.room_id, (await self.sync(self.carol, since))["rooms"]["invite"])
        self.assert_code(await self.carol.ask("POST", f"/join/{quote(self.room_id)}", {}), 200)
        answer = await self.sync(self.carol, since)
        self.assertEqual(self.state(self.joined(answer))["m.room.topic", ""], {"topic": "Oolong"})


class TokensOfRemovedRooms(PurgedCase):
    """The room is removed, by an operator or for the user."""

    async def test_a_room_that_was_removed_is_not_found(self) -> None:
        prev_batch = self.joined(await self.sync(self.bob))["timeline"]["prev_batch"]
        await self.maintenance.forget(self.room_id, "example.com", force=True)
        answer = await self.sync(self.bob, self.before)
        self.assertNotIn("rooms", answer)
        self.assertNotIn("rooms", await self.sync(self.bob))
        for path in (
            f"messages?dir=b&from={quote(prev_batch)}",
            f"context/{quote(self.old[0])}",
            f"event/{quote(self.old[0])}",
            "state",
            f"members?at={quote(self.before)}",
        ):
            reply = await self.bob.ask("GET", f"{self.room}/{path}")
            self.assert_code(reply, 404, "M_NOT_FOUND")
        sent = await self.bob.say(self.room_id, "x", "x")
        self.assert_code(sent, 404, "M_NOT_FOUND")

    async def test_a_room_that_comes_again_is_told_from_its_beginning(self) -> None:
        events = await self.database.run("export", self.events)
        await self.maintenance.forget(self.room_id, "example.com", force=True)
        since = (await self.sync(self.bob))["next_batch"]
        await self.persist_again(events)
        for token in (self.before, since):
            answer = await self.sync(self.bob, token)
            room = self.joined(answer)
            types = {e["type"] for e in (*room["state"]["events"], *room["timeline"]["events"])}
            self.assertIn("m.room.create", types)
            self.assertEqual(self.bodies(answer), [f"old {number}" for number in range(5)])
        self.assertNotIn("rooms", await self.sync(self.carol, token))

    async def test_what_a_user_forgot_is_not_told(self) -> None:
        await self.bob.ask("POST", f"{self.room}/leave", {})
        self.assert_code(await self.bob.ask("POST", f"{self.room}/forget", {}), 200)
        self.assertNotIn("rooms", await self.sync(self.bob, self.before))
        self.assertNotIn("rooms", await self.sync(self.bob, filter=LEFT_TOO))
        page = await self.bob.ask("GET", f"{self.room}/messages?dir=b&from={quote(self.before)}")
        self.assert_code(page, 403, "M_FORBIDDEN")
        self.assert_code(await self.bob.ask("POST", f"/join/{quote(self.room_id)}", {}), 200)
        room = self.joined(await self.sync(self.bob, self.before))
        self.assertIn({"topic": "Oolong"}, [e["content"] for e in room["timeline"]["events"]])

    def events(self, txn: Transaction) -> list[bytes]:
        """The events of the room as they came, in the order of the stream."""
        txn.execute(
            "SELECT j.raw FROM synrepl._room_events e JOIN synrepl._room_event_json j USING (event_no)"
            " JOIN synrepl._rooms r USING (room_no) WHERE r.room_id = %s ORDER BY e.stream_id",
            (self.room_id,),
        )
        return [bytes(raw) for (raw,) in txn.fetchall()]

    async def persist_again(self, raw: list[bytes]) -> None:
        """Have events persisted."""
        services = self.master_process.running.services
        assert services.rooms is not None
        done = await services.rooms.intake.persist(b"\n".join(raw), "11")
        self.assertTrue(all(each.error is None for each in done.events), done)


class LeftRooms(SyncCase):
    """Rooms that a user left."""

    async def test_the_first_answer_has_their_state_at_the_leave_if_it_is_wanted(self) -> None:
        await self.bob.ask("POST", f"{self.room}/leave", {})
        name = f"{self.room}/state/m.room.name/"
        self.assert_code(await self.alice.ask("PUT", name, {"name": "Coffee"}), 200)
        for wanted, part in (({}, "state"), ({"use_state_after": "true"}, "state_after")):
            answer = await self.sync(self.bob, filter=LEFT_TOO, **wanted)
            room = answer["rooms"]["leave"][self.room_id]
            names = [
                e["content"]["name"]
                for e in (*room[part]["events"], *room["timeline"]["events"])
                if e["type"] == "m.room.name"
            ]
            self.assertIn("Tea", names)
            self.assertNotIn("Coffee", str(answer))
        self.assertNotIn("rooms", await self.sync(self.bob))

    async def test_a_user_who_was_never_in_a_room_gets_no_state_of_it(self) -> None:
        created = await self.alice.ask(
            "POST", "/createRoom", {"invite": [self.carol.user_id], "topic": "secret"}
        )
        room_id = created.json["room_id"]
        await self.carol.ask("POST", f"/rooms/{quote(room_id)}/leave", {})
        answer = await self.sync(self.carol, filter=LEFT_TOO)
        room = answer["rooms"]["leave"][room_id]
        self.assertEqual(room["state"]["events"], [])
        self.assertNotIn("secret", str(answer))
