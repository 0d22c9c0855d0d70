"""Events in the bodies of requests: the forms of a body, what is refused, and what becomes of the events."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

from synrepl.core.errors import InputError, SynreplError
from synrepl.core.slices import Slices
from synrepl.services.rooms.assignment import OtherRoomWriter
from synrepl.services.rooms.room_intake import (
    BadEventsBody,
    NoRoomWriter,
    PostedEventRefused,
    PostedVersionNeeded,
    RoomIntake,
    TooManyPosted,
)
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.storage.rooms.tables.numbers import OtherRoomVersion
from tests.rooms.dags import dag, dag_names
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.reading_case import ReadingCase


class PostedBodies(ReadingCase):
    """A room of the vectors, sent in several forms."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        names = [each for each in dag_names(60) if dag(each).version.name == "10"]
        self.dag = dag(names[0])
        self.raws = [each.raw for each in self.dag.events]
        self.slices = Slices(self.one.process.scheduler)
        self.intake = self.intake_of("one", ["one"])

    def intake_of(self, instance: str, writers: list[str]) -> RoomIntake:
        """An intake of an instance."""
        room_writers = RoomWriters(self.database, writers)
        return RoomIntake(self.one.persister, room_writers, instance, self.slices)

    async def empty(self) -> None:
        """Forget all rooms."""
        await super().empty()
        self.intake = self.intake_of("one", ["one"])

    async def outcomes(self, body: bytes, **given: Any) -> list[str]:
        """What becomes of the events of a body."""
        done = await self.intake.persist(body, **given)
        self.assertEqual(
            [each.event_id for each in done.events],
            [each.event_id for each in self.dag.events[: len(done.events)]],
        )
        return [each.outcome.value for each in done.events]

    async def refused(
        self, error: type[SynreplError], text: str, body: bytes, **given: Any
    ) -> None:
        """A body is refused, and nothing is written."""
        before = self.sql("SELECT count(*) FROM synrepl._rooms")
        with self.assertRaisesRegex(error, text):
            await self.intake.persist(body, **given)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._rooms"), before)

    async def test_the_forms_of_a_body_are_equivalent(self) -> None:
        array = b"[" + b",".join(self.raws) + b"]"
        whole = b'{"version": "10",\n "events": ' + array + b"}"
        lines = b"\n".join(self.raws) + b"\n\n"
        found = []
        for body, given in (
            (whole, {}),
            (array, {"version": "10"}),
            (lines, {"version": "10"}),
            (self.raws[0], {}),
        ):
            found.append(await self.outcomes(body, **given))
            again = await self.outcomes(body, **given)
            self.assertEqual(set(again) - {"known", "waiting"}, set())
            await self.empty()
        self.assertEqual(found[1:3], [found[0], found[0]])
        self.assertIn("accepted", found[0])

    async def test_bytes_are_stored_as_they_stand_in_the_body(self) -> None:
        spaced = json.dumps(json.loads(self.raws[0]), indent=1).encode()
        await self.outcomes(b'{"events": [' + spaced + b"]}")
        found = await self.store.event(self.dag.events[0].event_id, as_it_came=True)
        self.assertEqual(found.json, spaced)

    async def test_the_version_is_that_of_the_create_event_or_of_the_stored_room(self) -> None:
        await self.outcomes(b"\n".join(self.raws[:3]))
        await self.intake.persist(b"\n".join(self.raws[3:5]))
        await self.empty()
        await self.refused(PostedVersionNeeded, "give 'version'", self.raws[3])

    async def test_history_goes_into_the_stream_of_backfilled_events(self) -> None:
        await self.outcomes(b"\n".join(self.raws[:3]), received="history")
        self.assertEqual(self.sql("SELECT max(stream_id) < 0 FROM synrepl._room_events"), True)
        await self.empty()
        await self.outcomes(self.raws[0], received="outlier")
        self.assertEqual(self.sql("SELECT flags FROM synrepl._room_events"), 1)

    async def test_events_that_waited_are_reported(self) -> None:
        done = await self.intake.persist(b"\n".join(self.raws[1:2]), version="10")
        self.assertEqual([each.outcome.value for each in done.events], ["waiting"])
        done = await self.intake.persist(self.raws[0])
        self.assertEqual([each.event_id for each in done.released], [self.dag.events[1].event_id])
        shown = done.to_json()
        self.assertEqual(shown["released"][0]["outcome"], "accepted")  # type: ignore[index]

    async def test_what_is_no_body_of_events(self) -> None:
        for body, text in (
            (b"", "no event"),
            (b"[]", "no event"),
            (b'{"version": "10", "events": []}', "no event"),
            (b'{"events": 5}', r"\$\.events"),
            (b'{"events": [], "more": 1}', "more"),
            (b"[1", "truncated"),
            (b'[{"a": 1}, ]', "malformed"),
        ):
            await self.refused(BadEventsBody, text, body)
        await self.refused(BadEventsBody, "'received' is 'never'", self.raws[0], received="never")

    async def test_more_events_than_one_request_may_have(self) -> None:
        array = b"[" + b",".join([self.raws[0]] * 10_001) + b"]"
        for body in (array, b'{"events": ' + array + b"}", b"\n".join([b"{}"] * 10_001)):
            await self.refused(TooManyPosted, "more than 10000 events", body)

    async def test_a_body_of_many_small_elements_is_refused_in_little_memory(self) -> None:
        many, used = 200_000, list[int]()
        for body, error in (
            (b"[" + b"1," * many + b"1]", PostedEventRefused),
            (b'{"events": [' + b"{}," * many + b"{}]}", PostedEventRefused),
            (b"1\n" * many, TooManyPosted),
            (b"\n" * many, BadEventsBody),
        ):
            tracemalloc.start()
            try:
                await self.refused(error, "", body)
                used.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
        self.assertLess(max(used), 4 * 10**6)

    async def test_many_events_are_parsed_in_many_turns_of_the_reactor(self) -> None:
        body = b"\n".join([self.raws[0]] * 1_000 + [b"{}"])
        await self.refused(PostedEventRefused, "line 1001", body, version="10")
        self.assertGreaterEqual(self.slices.turns, 20)

    async def test_an_event_that_is_nested_too_deeply_is_named(self) -> None:
        for depth in (300, 5_000):
            nested = b'{"room_id": "!a:b", "content": ' + b"[" * depth + b"]" * depth + b"}"
            for body, path in ((nested, "line 1"), (b"[" + nested + b"]", r"\$")):
                with self.assertRaisesRegex(InputError, f"at {path}.*(deep|recursion)"):
                    await self.intake.persist(body, "10")

    async def test_one_that_is_no_event_refuses_all(self) -> None:
        deep = b"[" * 5_000 + b"]" * 5_000
        for bad, text in (
            (b'{"room_id": "!a:b", "content": {"a": ' + deep + b"}}", "deep|recursion"),
            (b"{}", "has no"),
            (b"5", "object"),
            (b'{"room_id": 5}', "str"),
            (b"{", r"line 2.*"),
            (b'{"type": "m.room.create", "state_key": "", "content": []}', "has no"),
            (b'{"room_id": "!a:b"}', "has no"),
        ):
            body = self.raws[0] + b"\n" + bad
            await self.refused(PostedEventRefused, text, body, version="10")
        array = b"[" + self.raws[0] + b', {"room_id": "!a:b"}]'
        await self.refused(PostedEventRefused, r"\$\[1\].*has no", array, version="10")

    async def test_rooms_of_one_body_are_persisted_each_for_itself(self) -> None:
        other = SmallRoom("9")
        await self.intake.persist(other.create.raw, "9")
        mixed = [
            each
            for pair in zip(self.raws[:3], [each.raw for each in other.base[1:]], strict=True)
            for each in pair
        ]
        done = await self.intake.persist(b"\n".join(mixed), "10")
        self.assertEqual([each.outcome.value for each in done.events], ["accepted", "refused"] * 3)
        self.assertEqual(
            [each.event_id for each in done.events[::2]],
            [each.event_id for each in self.dag.events[:3]],
        )
        shown: Any = done.to_json()["events"]
        self.assertEqual({each["error"] for each in shown[1::2]}, {"OtherRoomVersion"})
        self.assertIn("stored with version 9", shown[1]["reason"])
        self.assertEqual(self.intake.outcomes["refused"], 3)
        with self.assertRaisesRegex(OtherRoomVersion, "stored with version 9"):
            await self.intake.persist(other.base[1].raw, "10")
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._room_events"), 4)

    async def test_a_room_of_another_instance_refuses_all(self) -> None:
        self.intake = self.intake_of("one", ["other"])
        await self.refused(OtherRoomWriter, "assigned to 'other'", self.raws[0])
        self.intake = RoomIntake(None, RoomWriters(self.database, ["one"]), "one", self.slices)
        await self.refused(NoRoomWriter, "does not write", self.raws[0])
        self.assertEqual(self.intake.outcomes, {"NoRoomWriter": 1})
