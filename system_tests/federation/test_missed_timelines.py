"""A server that was away for long: its clients are told of the gap, and get what is missing."""

from __future__ import annotations

from urllib.parse import quote

from system_tests.federation.test_joining_servers import JoiningServersCase
from system_tests.federation.test_sending_servers import SendingServersCase

#: More than a server is sent after an absence, and more than it fetches at once.
MISSED = 130

#: A filter with which a timeline is limited by nothing else.
_LONG = quote('{"room": {"timeline": {"limit": 100}}}')


class MissedTimelines(JoiningServersCase):
    """Much was said while a server did not run."""

    async def test_the_timeline_is_limited_and_its_pages_have_everything(self) -> None:
        room_id = await self.room()
        await self.enter(self.alice_of_two, room_id, self.one)
        await self.until_complete(self.two)
        before = await self.say(self.one, room_id, "before")
        await self.until_there(self.two, before)
        since = (await self.alice_of_two.ask("GET", "/sync?timeout=0")).json["next_batch"]
        await self.two.stop()
        await self.alice_of_one.ask(
            "PUT", f"/rooms/{quote(room_id)}/state/m.room.topic/", {"topic": "missed"}
        )
        missed = [
            await SendingServersCase.say(self, self.one, room_id, str(number))
            for number in range(MISSED)
        ]
        await self.two.start()
        await self.say(self.two, room_id, "I am back")  # by which it is noticed
        await self.until_there(self.two, missed[-1])
        synced = await self.alice_of_two.ask(
            "GET", f"/sync?timeout=0&since={quote(since)}&filter={_LONG}"
        )
        room = synced.json["rooms"]["join"][room_id]
        timeline = room["timeline"]
        self.assertTrue(timeline["limited"])
        shown = [each["event_id"] for each in timeline["events"]]
        self.assertIn(missed[-1], shown)
        self.assertNotIn(before, shown)
        topic = await self.alice_of_two.ask("GET", f"/rooms/{quote(room_id)}/state/m.room.topic/")
        self.assertEqual(topic.json, {"topic": "missed"})
        changed = [each["content"] for each in room["state"]["events"]]
        self.assertIn({"topic": "missed"}, changed)
        paged, at = shown[::-1], timeline["prev_batch"]
        while at is not None:
            path = f"/rooms/{quote(room_id)}/messages?dir=b&limit=50&from={quote(at)}"
            page = (await self.alice_of_two.ask("GET", path)).json
            paged += [each["event_id"] for each in page["chunk"]]
            at = page.get("end")
        self.assertIn(before, paged)
        self.assertEqual([each for each in paged[::-1] if each in missed], missed)
        self.assertEqual(len(paged), len(set(paged)))
