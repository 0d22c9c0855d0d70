"""Whole rooms: the verdict on each event, and the state before it (``dags/`` of the vectors)."""

from __future__ import annotations

import gc
import random
import sys
from typing import Any
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st
from signedjson.key import generate_signing_key

from synrepl.rooms.builder import EventBuilder, EventDraft
from synrepl.rooms.event import Event, event_of
from synrepl.rooms.judged import Judged, NoState, NotJudged, OtherRoom, UnknownEvents
from synrepl.rooms.ordering import topological_sort
from synrepl.rooms.room import Room
from synrepl.rooms.state_map import CompactStateMap
from synrepl.rooms.versions import V1, V6, V10
from tests.rooms.dags import Dag, dag, dag_names, hash_of, room_of, state_of

#: Of so many events, shuffles are tried; and hashes of all states are computed.
SMALL = 130

ROOM = "!room:a.example"

#: What Python keeps before each object that can contain others.
GC_HEAD = 16

TYPES = [
    "m.room.member",
    "m.room.power_levels",
    "m.room.join_rules",
    "m.room.topic",
    "m.room.redaction",
    "m.room.create",
]


def verdict(judged: Judged) -> tuple[str, str | None, bool]:
    """As the vectors have it."""
    if judged.refusal is not None:
        assert judged.failed is not None
        return "reject", judged.failed.value, False
    return "accept", None, judged.soft_failure is not None


def expected(row: dict[str, Any], soft_failures: bool) -> tuple[str, str | None, bool]:
    """What a line says."""
    soft_failed = soft_failures and bool(row.get("soft_failed"))
    return row["verdict"], row.get("failed_check"), soft_failed


class RoomVectors(TestCase):
    def test_states_and_verdicts_in_order_of_arrival(self) -> None:
        for name in dag_names():
            with self.subTest(name):
                self.in_order(dag(name))

    def in_order(self, room_dag: Dag) -> None:
        room, small = Room(room_dag.version), len(room_dag.lines) <= SMALL
        for n, (line, state) in enumerate(room_dag.states_before()):
            (judged,) = room.receive(line.event, live=room_dag.soft_failures)
            what = (room_dag.name, line.row["event_id"])
            self.assertEqual(judged.event.event_id, line.row["event_id"], what)
            self.assertEqual(verdict(judged), expected(line.row, room_dag.soft_failures), what)
            before = judged.state_before
            assert before is not None
            if state is not None:
                self.assertEqual(before, state, what)
            if small or n % 100 == 0 or state is None:
                self.assertEqual(hash_of(before), line.row["state_before_sha256"], what)
        head = room_dag.head
        self.assertEqual(room.current_state(), state_of(head["current_state"]), room_dag.name)
        if "forward_extremities" in head:
            self.assertEqual(
                room.forward_extremities, set(head["forward_extremities"]), room_dag.name
            )
        self.assertFalse(room.waiting)
        self.assertFalse(room.missing)
        rejected = sum(not judged.accepted for judged in room)
        self.assertEqual(rejected, head["n_rejected"], room_dag.name)

    def test_states_and_verdicts_in_any_order_of_arrival(self) -> None:
        """Whatever the order in which events come, the same are accepted, at the same states."""
        rng = random.Random(6)
        for name in dag_names(SMALL):
            room_dag = dag(name)
            _, in_order = room_of(room_dag.events, room_dag.version, live=False)
            events = room_dag.events
            rng.shuffle(events)
            room, shuffled = room_of(events, room_dag.version, live=False)
            with self.subTest(name):
                self.assertFalse(room.waiting)
                self.assertEqual(shuffled.keys(), in_order.keys())
                for line in room_dag.lines:
                    event_id = line.event.event_id
                    got, first = shuffled[event_id], in_order[event_id]
                    self.assertEqual(verdict(got), verdict(first), event_id)
                    self.assertEqual(verdict(got)[:2], expected(line.row, False)[:2], event_id)
                    self.assertEqual(got.state_before, first.state_before, event_id)
                    self.assertEqual(got.ordering.topological, first.ordering.topological, event_id)
                self.assertEqual(
                    set(room.forward_extremities),
                    room_of(room_dag.events, room_dag.version, False)[0].forward_extremities,
                )

    def test_topological_order_puts_prev_events_first(self) -> None:
        """It is one that parents come first in, and honest servers' depth says the same."""
        for name in dag_names(60):
            room_dag = dag(name)
            room, _ = room_of(room_dag.events, room_dag.version)
            self.assertEqual(topological_sort(room_dag.events).in_cycles, [])
            seen: set[str] = set()
            for judged in room.in_topological_order():
                self.assertLessEqual(set(judged.prev_event_ids), seen, name)
                self.assertEqual(judged.ordering.topological, judged.event.depth, name)
                seen.add(judged.event.event_id)
            self.assertEqual(len(seen), len(room_dag.lines))


class RoomMemory(TestCase):
    def test_state_maps_take_a_tenth_of_full_copies(self) -> None:
        """The states before and after each event, against a dictionary for each event."""
        names = ["dags/v10_chat_5000.jsonl.gz", "dags/v12_chat_5000.jsonl.gz"]
        present = [name for name in names if name in dag_names()] or ["dags/v10_mixed_120.jsonl.gz"]
        for name in present:
            room_dag = dag(name)
            room, _ = room_of(room_dag.events, room_dag.version, live=False)
            got, copies = sizes(room)
            self.assertLess(got * (10 if len(room) > 1000 else 3), copies, name)


def sizes(room: Room) -> tuple[int, int]:
    """Bytes of a room's state maps, all that they share counted once, and of full copies."""
    seen: dict[int, object] = {}
    got = copies = 0
    for judged in room:
        for state in (judged.state_before, judged.state_after):
            assert state is not None
            ahead: list[object] = [state]
            while ahead:
                each = ahead.pop()
                if id(each) not in seen and isinstance(each, (tuple, CompactStateMap)):
                    seen[id(each)] = each
                    got += sys.getsizeof(each) + GC_HEAD
                    ahead += gc.get_referents(each)
        copies += sys.getsizeof(dict(judged.state_before or {})) + GC_HEAD
    slots = room.current_state().slots
    return got + sys.getsizeof(slots.numbers) + sys.getsizeof(slots.keys), copies


ids = st.integers(0, 9).map("$e{}:a.example".format)
contents = st.fixed_dictionaries(
    {},
    optional={
        "creator": st.just("@a:a.example"),
        "membership": st.sampled_from(["join", "invite", "leave", "ban", 7]),
        "users": st.dictionaries(
            st.sampled_from(["@a:a.example", "@b:b.example"]), st.integers(0, 100)
        ),
        "join_rule": st.sampled_from(["public", "invite", None]),
    },
)
rooms_of_v1 = st.fixed_dictionaries(
    {},
    optional={
        number: st.fixed_dictionaries(
            {
                "type": st.sampled_from(TYPES),
                "sender": st.sampled_from(["@a:a.example", "@b:b.example"]),
                "state_key": st.sampled_from(["", "@a:a.example", "@b:b.example"]),
                "content": contents,
                "depth": st.integers(0, 2**40),
                "prev_events": st.lists(ids, max_size=3),
                "auth_events": st.lists(ids, max_size=3),
            }
        )
        for number in range(8)
    },
)


class AnyEvents(TestCase):
    """Version 1, where events may follow and cite one another in circles."""

    @settings(max_examples=120, deadline=None)
    @given(rooms_of_v1, st.randoms(use_true_random=False), st.booleans())
    def test_nothing_is_raised_and_the_order_does_not_matter(
        self, story: dict[int, dict[str, Any]], rng: random.Random, live: bool
    ) -> None:
        create = {"type": "m.room.create", "sender": "@a:a.example", "state_key": "", "depth": 1}
        create |= {"content": {"creator": "@a:a.example"}, "prev_events": [], "auth_events": []}
        events = []
        for number, fields in enumerate([create, *story.values()]):
            refs = {
                name: [[each, {"sha256": ""}] for each in fields[name]]
                for name in ("prev_events", "auth_events")
            }
            signatures = {"a.example": {"ed25519:1": "x"}, "b.example": {"ed25519:1": "x"}}
            more = {"event_id": f"$e{number}:a.example", "room_id": ROOM, "signatures": signatures}
            events.append(event_of(fields | refs | more | {"origin_server_ts": number}, V1))
        room, judged = room_of(events, V1, live)
        room.current_state()
        rng.shuffle(events)
        other, shuffled = room_of(events, V1, live)
        other.current_state()
        self.assertEqual(
            {each: (one.refusal, one.state_before) for each, one in judged.items()},
            {each: (one.refusal, one.state_before) for each, one in shuffled.items()},
        )
        self.assertEqual(set(room.waiting), set(other.waiting))
        self.assertEqual(room.missing, other.missing)
        self.assertEqual(len(room) + len(room.waiting), len(events))


class SmallRooms(TestCase):
    """A room of a few events, made here."""

    key = generate_signing_key("1")

    def setUp(self) -> None:
        self.events: dict[str, Event] = {}
        self.make("create", "m.room.create", {"creator": "@a:a.example"}, "", prev=())
        self.make("join", "m.room.member", {"membership": "join"}, "@a:a.example", prev=["create"])

    def make(
        self,
        name: str,
        kind: str,
        content: dict[str, Any],
        state_key: str | None = None,
        *,
        prev: Any,
        cited: Any = ("create", "join"),
        room: str = ROOM,
        sender: str = "@a:a.example",
    ) -> Event:
        if kind == "m.room.create":
            content = content | {"room_version": "10"}
        builder = EventBuilder(V10, sender.partition(":")[2], self.key)
        event = self.events[name] = builder.assemble(
            EventDraft(kind, sender, content, len(self.events), state_key),
            room,
            [self.events[each] for each in prev],
            [self.events[each] for each in cited if each in self.events],
        )
        return event

    def message(self, name: str, *prev: str, **more: Any) -> Event:
        return self.make(name, "m.room.message", {"body": name}, prev=prev, **more)

    def topic(self, name: str, *prev: str, **more: Any) -> Event:
        return self.make(name, "m.room.topic", {"topic": name}, "", prev=prev, **more)

    def id_of(self, name: str) -> str:
        return self.events[name].event_id

    def test_events_wait_for_their_prev_events(self) -> None:
        room = Room(V10)
        last, middle = self.message("middle", "join"), None
        last, middle = self.message("last", "middle"), self.events["middle"]
        self.assertEqual(room.receive(last), [])
        self.assertEqual(list(room.waiting), [last.event_id])
        self.assertEqual(room.missing, {self.id_of("create"), self.id_of("join"), middle.event_id})
        self.assertEqual(room.receive(middle), [])
        self.assertEqual(room.receive(middle), [])
        self.assertEqual(room.missing, {self.id_of("create"), self.id_of("join")})
        self.assertEqual(len(room.receive(self.events["create"])), 1)
        judged = room.receive(self.events["join"])
        self.assertEqual(
            [each.event.event_id for each in judged],
            [self.id_of("join"), middle.event_id, last.event_id],
        )
        self.assertEqual(room.receive(last), [])
        self.assertEqual((len(room.waiting), room.missing), (0, set()))
        self.assertEqual([each.ordering.stream for each in room], [1, 2, 3, 4])

    def test_the_number_of_waiting_events_is_limited(self) -> None:
        room = Room(V10, max_waiting=3)
        waiting = [self.message(f"m{n}", "join") for n in range(5)]
        for event in waiting:
            room.receive(event)
        self.assertEqual(list(room.waiting), [event.event_id for event in waiting[2:]])
        room.receive(self.events["create"])
        self.assertEqual(len(room.receive(self.events["join"])), 4)
        self.assertEqual(len(room.receive(waiting[0])), 1)
        self.assertEqual(room.missing, set())

    def test_events_that_nothing_waits_for_are_not_missing(self) -> None:
        room = Room(V10, max_waiting=0)
        room.receive(self.message("m", "join"))
        self.assertEqual((len(room.waiting), room.missing), (0, set()))

    def test_a_rejected_event_changes_no_state(self) -> None:
        room = Room(V10)
        for each in ("create", "join"):
            room.receive(self.events[each])
        self.topic("topic", "join")
        (good,) = room.receive(self.events["topic"])
        self.topic("bad", "topic", sender="@b:b.example", cited=["create"])
        (bad,) = room.receive(self.events["bad"])
        assert bad.refusal is not None
        self.assertEqual(
            (bad.accepted, bad.passed_all_checks, bad.failed), (False, False, "auth_events")
        )
        self.assertEqual(bad.state_before, good.state_after)
        self.assertIs(bad.state_before, bad.state_after)
        self.assertEqual(room.forward_extremities, {self.id_of("topic")})
        (after,) = room.receive(self.message("after", "bad"))
        self.assertEqual(after.state_before, good.state_after)
        self.assertEqual(room.forward_extremities, {self.id_of("after")})

    def test_a_message_changes_no_state_and_copies_nothing(self) -> None:
        room = Room(V10)
        for each in (self.events["create"], self.events["join"], self.message("m", "join")):
            room.receive(each)
        self.assertIs(room[self.id_of("m")].state_after, room[self.id_of("join")].state_after)

    def test_an_event_against_the_current_state_is_soft_failed(self) -> None:
        """Somebody who was banned meanwhile answers from before the ban."""
        room = Room(V10)
        b = "@b:b.example"
        self.make("open", "m.room.join_rules", {"join_rule": "public"}, "", prev=["join"])
        self.make(
            "b",
            "m.room.member",
            {"membership": "join"},
            b,
            prev=["open"],
            cited=["create", "open"],
            sender=b,
        )
        self.make(
            "ban",
            "m.room.member",
            {"membership": "ban"},
            b,
            prev=["b"],
            cited=["create", "join", "b"],
        )
        for each in self.events.values():
            room.receive(each)
        self.message("late", "b", cited=["create", "b"], sender=b)
        history = Room(V10)
        for each in self.events.values():
            history.receive(each, live=False)
        self.assertTrue(history[self.id_of("late")].passed_all_checks)
        self.assertEqual(history.forward_extremities, {self.id_of("ban"), self.id_of("late")})
        (late,) = room.receive(self.events["late"])
        self.assertEqual(
            (late.accepted, late.passed_all_checks, late.failed), (True, False, "current_state")
        )
        self.assertEqual(room.forward_extremities, {self.id_of("ban")})
        (after,) = room.receive(self.message("after", "late"))
        self.assertTrue(after.passed_all_checks)
        self.assertEqual(room.forward_extremities, {self.id_of("ban"), self.id_of("after")})

    def test_resolving_to_one_of_the_states_makes_no_other(self) -> None:
        room = Room(V10)
        self.topic("topic", "join")
        self.message("m", "join")
        self.message("merge", "m", "topic")
        for each in self.events.values():
            room.receive(each)
        self.assertIs(room[self.id_of("merge")].state_before, room[self.id_of("topic")].state_after)

    def test_a_malformed_event_is_rejected_by_state_independent_rules(self) -> None:
        room = Room(V10)
        room.receive(self.events["create"])
        unsigned = event_of(self.events["join"].fields | {"signatures": {}}, V10)
        (judged,) = room.receive(unsigned)
        self.assertEqual((judged.accepted, judged.failed), (False, "auth_events"))

    def test_an_outlier_serves_as_auth_event_but_not_as_prev_event(self) -> None:
        room = Room(V10)
        self.topic("topic", "join")
        topic, message = self.events["topic"], self.message("m", "topic")
        room.receive(topic)
        room.receive(message)
        for each in ("create", "join"):
            room.receive_outlier(self.events[each])
        self.assertEqual(list(room.waiting), [topic.event_id, message.event_id])
        room.receive(self.events["create"])
        self.assertEqual(len(room.receive(self.events["join"])), 3)

    def test_an_outlier_gets_its_ordering_when_it_is_received(self) -> None:
        room = Room(V10)
        self.make("rules", "m.room.join_rules", {"join_rule": "public"}, "", prev=["join"])
        for event in self.events.values():
            room.receive_outlier(event)
        room.receive(self.events["create"])
        room.receive(self.events["join"])
        self.assertEqual([each.ordering.stream for each in room], [0, 1, 2])

    def test_outliers_have_no_state(self) -> None:
        room = Room(V10)
        room.receive_outlier(self.events["create"])
        (join,) = room.receive_outlier(self.events["join"])
        self.assertTrue(join.accepted)
        self.assertEqual(room.receive_outlier(self.events["join"]), [])
        self.assertEqual((join.state_before, room.forward_extremities), (None, frozenset()))
        with self.assertRaisesRegex(UnknownEvents, "must be known"):
            self.message("z", "join")
            room.receive_outlier(self.message("m", "join", cited=["z"]))
        # One that follows an outlier waits for it to come again.
        self.assertEqual(room.receive(self.message("next", "join")), [])
        self.assertEqual(room.missing, {self.id_of("join")})
        with self.assertRaises(NoState):
            room.state_after([self.id_of("join")])
        self.assertEqual(len(room.receive(self.events["create"])), 1)
        self.assertEqual(len(room.receive(self.events["join"])), 2)
        self.assertEqual([each.ordering.stream for each in room], [1, 2, 3])
        self.assertEqual(room.current_state(), room[self.id_of("join")].state_after)

    def test_an_event_is_judged_at_a_reported_state(self) -> None:
        room = Room(V10)
        for each in ("create", "join"):
            room.receive_outlier(self.events[each])
        state = {
            ("m.room.create", ""): self.id_of("create"),
            ("m.room.member", "@a:a.example"): self.id_of("join"),
        }
        self.message("unknown", "join")
        event = self.message("m", "unknown")
        room.receive(self.message("next", "m"))
        judged = room.receive_with_state(event, state)
        self.assertEqual([each.accepted for each in judged], [True, True])
        self.assertEqual(room.current_state(), state)
        self.assertEqual(room.receive_with_state(event, {}), [])
        self.assertEqual(room.current_state(), state)
        with self.assertRaises(UnknownEvents):
            room.receive_with_state(self.message("n", "m"), {("m.room.topic", ""): "$other"})

    def test_refuses_events_of_another_room(self) -> None:
        room = Room(V10)
        room.receive(self.events["create"])
        other = self.message("other", "create", room="!other:a.example")
        for take_in in (room.receive, room.receive_outlier):
            self.assertRaises(OtherRoom, take_in, other)
        self.assertRaises(OtherRoom, room.receive_with_state, other, {})
        self.assertRaises(OtherRoom, Room(V6, ROOM).receive, self.events["create"])
        self.assertRaises(NotJudged, room.__getitem__, "$other")

    def test_events_without_prev_events(self) -> None:
        """Only the creation may have none: there is no state before any other."""
        room = Room(V10)
        room.receive(self.events["create"])
        room.receive(self.events["join"])
        (judged,) = room.receive(self.message("stray"))
        self.assertEqual((judged.accepted, judged.failed), (False, "state_before"))
