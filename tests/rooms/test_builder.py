"""Events that are built are what other servers expect, in every room version."""

from __future__ import annotations

from unittest import TestCase

from synrepl.rooms.builder import EventBuilder, EventDraft, NoRoomToBuildIn, RoomIdNeeded
from synrepl.rooms.event import MAX_PREV_EVENTS, BadEvent, Event
from synrepl.rooms.hashes import NoCanonicalJson, reference_hash
from synrepl.rooms.judging import lookup_judged
from synrepl.rooms.receipt import check_on_receipt
from synrepl.rooms.room import Room
from synrepl.rooms.versions import ROOM_VERSIONS, EventIds
from tests.rooms.built_rooms import ALICE, BOB, CAROL, BuiltRoom
from tests.rooms.stored_rooms import StoredRoom


class BuiltRooms(TestCase):
    """Rooms with all that happens in one."""

    def test_every_event_passes_all_checks_of_the_servers_that_receive_it(self) -> None:
        for version in ROOM_VERSIONS:
            with self.subTest(version):
                made = self.story(version)
                for event in made.events:
                    self.assertEqual(
                        check_on_receipt(event.raw, made.version, made.keys).refusal, None
                    )
                    judged = made.room[event.event_id]
                    self.assertEqual(judged.refusal, None, event.type)
                    self.assertEqual(judged.soft_failure, None)
                    self.assertEqual(judged.ordering.topological, event.depth)
                self.assertEqual(made.room.missing, set())

    def story(self, version: str) -> BuiltRoom:
        made = BuiltRoom(version)
        made.member(BOB, "join")
        made.member(CAROL, "invite", BOB)
        made.member(CAROL, "join")
        message = made.send("m.room.message", {"body": "hello"}, CAROL)
        redaction = made.send("m.room.redaction", {}, CAROL, redacts=message.event_id)
        self.assertEqual(redaction.redacts, message.event_id)
        made.member(BOB, "leave", ALICE)
        made.member(BOB, "ban", ALICE)
        if made.version.knocking:
            made.state("m.room.join_rules", {"join_rule": "knock"})
            made.member("@dan:d.example", "knock")
        return made

    def test_an_event_follows_all_forward_extremities(self) -> None:
        made = BuiltRoom()
        made.member(BOB, "join")
        forks = [made.build("m.room.message", {"n": n}, BOB) for n in range(3)]
        for event in forks:
            made.take(event)
        merge = made.send("m.room.message", {}, ALICE)
        self.assertEqual(set(merge.prev_event_ids), {each.event_id for each in forks})
        self.assertEqual(merge.depth, forks[0].depth + 1)
        self.assertEqual(made.room.forward_extremities, {merge.event_id})

    def test_an_event_follows_the_newest_of_too_many_forward_extremities(self) -> None:
        made = BuiltRoom()
        made.member(BOB, "join")
        forks = [made.build("m.room.message", {"n": n}, BOB) for n in range(MAX_PREV_EVENTS + 1)]
        for event in forks:
            made.take(event)
        merge = made.send("m.room.message", {})
        self.assertEqual(len(merge.prev_event_ids), MAX_PREV_EVENTS)
        self.assertEqual(len(made.room.forward_extremities), 2)

    def test_references_have_hashes_in_the_oldest_versions(self) -> None:
        made = BuiltRoom("2")
        last, event = made.events[-1], made.send("m.room.message", {})
        ((event_id, hashes),) = event.fields["prev_events"]
        self.assertEqual(event_id, last.event_id)
        self.assertEqual(list(hashes), ["sha256"])
        self.assertEqual(len(reference_hash(last.fields, made.version)), 32)
        self.assertIs(made.version.event_ids, EventIds.GIVEN)
        self.assertRegex(event.event_id, r"^\$[\w=-]{24}:a\.example$")

    def test_a_store_gives_the_same_event(self) -> None:
        made = BuiltRoom("12")
        stored = StoredRoom(made.version)
        for event in made.events:
            stored.keep(stored.lookup(lookup_judged(event)))
        stored.rounds = 0
        draft = made.draft("m.room.member", {"membership": "join"}, BOB, BOB)
        builder = made.builder(BOB)
        built: Event = stored.lookup(builder.lookup_built(draft))
        self.assertEqual(built.raw, builder.build(draft, made.room).raw)
        self.assertLessEqual(stored.rounds, 4)


class BuilderRefusals(TestCase):
    """What cannot be built."""

    def test_refuses_an_event_before_the_create_event(self) -> None:
        made = BuiltRoom()
        with self.assertRaisesRegex(NoRoomToBuildIn, "m.room.message cannot be built"):
            made.builder(ALICE).build(made.draft("m.room.message", {}), Room(made.version))

    def test_refuses_a_create_event_without_a_room_id(self) -> None:
        made = BuiltRoom()
        draft = EventDraft("m.room.create", ALICE, {}, 1, "")
        builder = made.builder(ALICE)
        self.assertRaises(RoomIdNeeded, builder.create, draft)
        newest = BuiltRoom("12").builder(ALICE)
        self.assertIsInstance(newest, EventBuilder)
        self.assertNotIn("room_id", newest.create(draft).fields)

    def test_refuses_content_that_is_too_large_or_not_json(self) -> None:
        made = BuiltRoom()
        with self.assertRaisesRegex(BadEvent, "more than 65536"):
            made.build("m.room.message", {"body": "x" * 65_536})
        with self.assertRaises(NoCanonicalJson):
            made.build("m.room.message", {"body": float("nan")})
