"""Faster joins: what is judged with a part of the state, and what the resync makes of it (``faster_joins/``)."""

from __future__ import annotations

import gzip
import json
from typing import Any
from unittest import TestCase

from synrepl.rooms.auth.selection import auth_event_keys
from synrepl.rooms.event import Event, event_of
from synrepl.rooms.judged import Judged, NoState, UnknownEvents
from synrepl.rooms.partial import (
    Certainty,
    NotNext,
    PartialJoin,
    PendingResync,
    join_partially,
    resync,
)
from synrepl.rooms.room import Room
from synrepl.rooms.send_join_response import IncompleteAnswer
from synrepl.rooms.state import StateKey
from synrepl.rooms.versions import room_version
from tests.rooms.dags import apply_delta, hash_of, state_of
from tests.rooms.vector_files import files, path_of


class Story:
    """A scenario, played up to some point."""

    def __init__(self, name: str) -> None:
        with gzip.open(path_of(name)) as file:
            self.data: dict[str, Any] = json.load(file)
        self.version = room_version(self.data["room_version"])
        self.pdus = {event_id: self.event(pdu) for event_id, pdu in self.data["pdus"].items()}
        response = self.data["send_join_response_partial"]
        join = PartialJoin(
            self.event(response["event"]),
            [self.event(pdu) for pdu in response["state"]],
            [self.event(pdu) for pdu in response["auth_chain"]],
            frozenset(response["servers_in_room"]),
        )
        self.join = join
        self.room = Room(self.version)
        self.partial = join_partially(self.room, join, self.data["joining_server"])

    def event(self, pdu: dict[str, Any]) -> Event:
        return event_of(pdu, self.version)

    def state_at(self, event_id: str) -> dict[StateKey, str]:
        """The state before an event, as the other server tells it; its events are taken in."""
        answer = self.data["state_ids"][event_id]
        everything = [*answer["pdu_ids"], *answer["auth_chain_ids"]]
        self.partial.add_outliers(self.pdus[each] for each in everything if each not in self.room)
        events = [self.pdus[each] for each in answer["pdu_ids"]]
        return {(each.type, each.state_key or ""): each.event_id for each in events}

    def push(self, event: Event) -> tuple[Judged, set[str]]:
        """An event arrives, and what it lacks is fetched."""
        asked: set[str] = set()
        judged = self.partial.receive(event)
        while not judged:
            missing = self.room.missing
            assert missing
            parents = missing.intersection(event.prev_event_ids)
            asked |= parents
            self.partial.add_outliers(self.chain(missing - parents))
            for each in parents:
                judged += self.partial.add_with_state(self.pdus[each], self.state_at(each))
            judged = [self.room[event.event_id]] if event.event_id in self.room else []
        assert judged[-1].event is event or judged[-1].event.event_id == event.event_id
        return judged[-1], asked

    def chain(self, event_ids: set[str]) -> list[Event]:
        """Events that are cited, with all that they depend on and is not known."""
        found: dict[str, Event] = {}
        ahead = list(event_ids)
        while ahead:
            event_id = ahead.pop()
            if event_id not in found and event_id not in self.room:
                found[event_id] = self.pdus[event_id]
                ahead += found[event_id].auth_event_ids
        return list(found.values())

    def push_all(self) -> None:
        for row in self.data["later_events"]:
            self.push(self.event(row["event"]))


def word(judged: Judged) -> str:
    return "accept" if judged.accepted else "reject"


class FasterJoinVectors(TestCase):
    def test_the_vectors_exist(self) -> None:
        self.assertGreaterEqual(len(files("faster_joins/*")), 4)

    def test_verdicts_with_partial_state_equal_those_of_the_vectors(self) -> None:
        for name in files("faster_joins/*"):
            with self.subTest(name):
                self.partially(Story(name))

    def partially(self, story: Story) -> None:
        data, state = story.data, dict[StateKey, str]()
        join = story.room[data["join_event_id"]]
        self.assertTrue(join.accepted)
        self.assertEqual(join.state_before, state_of(data["state_at_join_partial"]))
        for row in data["later_events"]:
            apply_delta(state, row["state_before_partial_delta"])
            judged, asked = story.push(story.event(row["event"]))
            event_id, before = row["event_id"], judged.state_before
            assert before is not None
            self.assertEqual(judged.event.event_id, event_id)
            self.assertEqual(asked, set(row["missing_prev_events"]), event_id)
            self.assertEqual(judged.partial, row["state_partial"], event_id)
            self.assertEqual(before, state, event_id)
            self.assertEqual(hash_of(before), row["state_before_partial_sha256"], event_id)
            self.assertEqual(word(judged), row["verdict_partial"], (event_id, judged.refusal))
            failed = None if judged.failed is None else judged.failed.value
            self.assertEqual(failed, row.get("failed_check_partial"), event_id)
            self.assertIsNone(judged.soft_failure)
        self.assertEqual(
            story.room.current_state(), state_of(data["expected"]["current_state_before_resync"])
        )

    def test_the_resync_changes_what_the_vectors_say(self) -> None:
        for name in files("faster_joins/*"):
            with self.subTest(name):
                self.resynced(Story(name))

    def resynced(self, story: Story) -> None:
        story.push_all()
        data, expected = story.data, story.data["expected"]
        before = story.room.current_state()
        join_id = data["join_event_id"]
        self.assertEqual(next(iter(story.partial.pending())), PendingResync(join_id, True))
        needed = [each.event_id for each in story.partial.pending() if each.state_needed]
        self.assertEqual(needed, [join_id])
        result = resync(story.partial, {join_id: story.state_at(join_id)})
        self.assertFalse(story.partial.is_partial)
        self.assertEqual(list(story.partial.pending()), [])
        self.assertEqual(len(story.room.partial_event_ids), 0)
        self.assertEqual(
            set(result.wrongly_accepted), set(expected["wrongly_accepted_under_partial_state"])
        )
        self.assertEqual(
            set(result.wrongly_rejected), set(expected["wrongly_rejected_under_partial_state"])
        )
        verdicts = {each: word(story.room[each]) for each in expected["verdicts_after_resync"]}
        self.assertEqual(verdicts, expected["verdicts_after_resync"])
        current = story.room.current_state()
        self.assertEqual(current, state_of(expected["current_state_after_resync"]))
        self.assertEqual(hash_of(current), expected["current_state_after_resync_sha256"])
        self.assertEqual(before.with_delta(result.current_state), current)
        self.assertEqual(
            story.room.forward_extremities, set(expected["forward_extremities_after_resync"])
        )
        self.assertEqual(story.room[join_id].state_before, state_of(data["state_at_join_full"]))
        state: dict[StateKey, str] = {}
        for row in data["later_events"]:
            apply_delta(state, row["state_before_full_delta"])
            judged = story.room[row["event_id"]]
            self.assertEqual(judged.state_before, state, row["event_id"])
            self.assertEqual(word(judged), row["verdict_full"], row["event_id"])
            failed = None if judged.failed is None else judged.failed.value
            self.assertEqual(failed, row.get("failed_check_full"), row["event_id"])

    def test_a_reported_state_for_each_event_gives_the_same_result(self) -> None:
        """As the seed has it: from the join down, the state before each is fetched."""
        name = files("faster_joins/*")[0]
        once, each_time = Story(name), Story(name)
        once.push_all()
        each_time.push_all()
        resync(once.partial, {once.join.join.event_id: once.state_at(once.join.join.event_id)})
        for pending in each_time.partial.pending():
            change = each_time.partial.resync(
                pending.event_id, each_time.state_at(pending.event_id)
            )
            self.assertEqual(
                change.was.state_before.with_delta(change.state_before),  # type: ignore[union-attr]
                change.now.state_before,
            )
        self.assertFalse(each_time.partial.is_partial)
        self.assertEqual(each_time.room.current_state(), once.room.current_state())
        self.assertEqual(each_time.room.forward_extremities, once.room.forward_extremities)


class PartialStateQueries(TestCase):
    def setUp(self) -> None:
        self.story = Story(files("faster_joins/*")[0])
        self.story.push_all()
        self.partial = self.story.partial
        self.joiner = ("m.room.member", self.story.data["joining_user"])
        self.remote = ("m.room.member", "@u1:s1.example")

    def finish(self) -> None:
        join_id = self.story.data["join_event_id"]
        resync(self.partial, {join_id: self.story.state_at(join_id)})

    def test_certainty_by_key(self) -> None:
        ask = self.partial.state_entry
        self.assertEqual(ask(("m.room.create", "")).certainty, Certainty.FINAL)
        self.assertEqual(ask(("m.room.name", "")).certainty, Certainty.PROVISIONAL)
        self.assertEqual(ask(("org.example", "@u1:s1.example")).certainty, Certainty.PROVISIONAL)
        own = ask(self.joiner)
        self.assertEqual(own.certainty, Certainty.PROVISIONAL)
        self.assertEqual(own.event_id, self.story.data["join_event_id"])
        self.assertEqual(ask(self.remote).certainty, Certainty.UNKNOWN)
        self.finish()
        for key in (self.joiner, self.remote, ("m.room.name", "")):
            answer = ask(key)
            self.assertEqual(answer.certainty, Certainty.FINAL)
            self.assertEqual(answer.event_id, self.story.room.current_state().get(key))

    def test_several_keys_are_as_certain_as_the_least_certain(self) -> None:
        certainty = self.partial.certainty
        create, name = ("m.room.create", ""), ("m.room.name", "")
        self.assertEqual(certainty([]), Certainty.FINAL)
        self.assertEqual(certainty([create]), Certainty.FINAL)
        self.assertEqual(certainty([create, name]), Certainty.PROVISIONAL)
        self.assertEqual(certainty([self.remote, name, create]), Certainty.UNKNOWN)
        self.assertEqual(certainty(), Certainty.UNKNOWN)
        self.finish()
        self.assertEqual(certainty(), Certainty.FINAL)

    def test_a_local_message_can_be_made_and_a_remote_ban_cannot_be_judged(self) -> None:
        fields = {"sender": self.joiner[1], "type": "m.room.message", "content": {}}
        base = self.story.data["pdus"][self.story.data["join_event_id"]] | fields
        base.pop("state_key")
        message = self.story.event(base)
        self.assertEqual(self.partial.certainty(auth_event_keys(message)), Certainty.PROVISIONAL)
        ban = {
            "type": "m.room.member",
            "state_key": self.remote[1],
            "content": {"membership": "ban"},
        }
        self.assertEqual(
            self.partial.certainty(auth_event_keys(self.story.event(base | ban))), Certainty.UNKNOWN
        )

    def test_full_state_is_final(self) -> None:
        full, partial = (
            next(
                row["event_id"]
                for row in self.story.data["later_events"]
                if row["state_partial"] == which
            )
            for which in (False, True)
        )
        self.assertEqual(self.partial.state_entry(self.remote, full).certainty, Certainty.FINAL)
        self.assertEqual(self.partial.certainty(None, full), Certainty.FINAL)
        self.assertEqual(
            self.partial.state_entry(self.remote, partial).certainty, Certainty.UNKNOWN
        )
        self.assertIsNotNone(self.partial.state_entry(self.remote, full).event_id)
        outlier = self.partial.state_entry(("m.room.create", "")).event_id
        self.assertRaises(NoState, self.partial.state_entry, self.remote, outlier)

    def test_servers_are_provisional_until_the_resync(self) -> None:
        servers, certainty = self.partial.servers()
        listed = set(self.story.data["send_join_response_partial"]["servers_in_room"])
        self.assertEqual(certainty, Certainty.PROVISIONAL)
        self.assertLessEqual(listed | {"obs.example"}, servers)
        self.finish()
        servers, certainty = self.partial.servers()
        self.assertEqual(certainty, Certainty.FINAL)
        self.assertIn("obs.example", servers)


class ResyncOrder(TestCase):
    """The resync goes from the join down, and nowhere else."""

    def setUp(self) -> None:
        self.story = Story(files("faster_joins/*")[0])
        self.join_id = self.story.data["join_event_id"]
        self.later = [row["event_id"] for row in self.story.data["later_events"][:2]]
        for row in self.story.data["later_events"][:2]:
            self.story.push(self.story.event(row["event"]))

    def test_refuses_an_event_that_is_not_next(self) -> None:
        partial = self.story.partial
        with self.assertRaisesRegex(NotNext, "the state before it is needed"):
            partial.resync(self.join_id)
        with self.assertRaisesRegex(NotNext, "come first"):
            partial.resync(self.later[0])
        with self.assertRaisesRegex(NotNext, "nothing to find out"):
            partial.resync(self.story.join.join.auth_event_ids[0])
        with self.assertRaises(NotNext):
            resync(partial)
        with self.assertRaises(UnknownEvents):
            partial.resync(self.join_id, {("m.room.topic", ""): "$unheard-of"})
        partial.resync(self.join_id, self.story.state_at(self.join_id))
        with self.assertRaisesRegex(NotNext, "nothing to find out"):
            partial.resync(self.join_id, {})
        self.assertTrue(partial.is_partial)

    def test_an_event_judged_again_out_of_order_stays_partial(self) -> None:
        self.assertTrue(self.story.room.judge_again(self.later[0]).partial)
        with self.assertRaisesRegex(UnknownEvents, "must be known"):
            self.story.room.judge_again(self.join_id)

    def test_events_that_arrive_during_the_resync_are_resynced(self) -> None:
        """They are judged with what is known by then, and gone through like the others."""
        partial, story = self.story.partial, self.story
        partial.resync(self.join_id, story.state_at(self.join_id))
        for row in story.data["later_events"][2:]:
            story.push(story.event(row["event"]))
        resync(partial)
        expected = story.data["expected"]
        self.assertEqual(
            story.room.current_state(), state_of(expected["current_state_after_resync"])
        )
        verdicts = {each: word(story.room[each]) for each in expected["verdicts_after_resync"]}
        self.assertEqual(verdicts, expected["verdicts_after_resync"])

    def test_a_resynced_room_is_like_any_other(self) -> None:
        story = self.story
        resync(story.partial, {self.join_id: story.state_at(self.join_id)})
        self.assertFalse(story.partial.is_partial)
        for row in story.data["later_events"][2:]:
            judged, asked = story.push(story.event(row["event"]))
            self.assertEqual(word(judged), row["verdict_full"], row["event_id"])
            self.assertFalse(judged.partial)
            self.assertEqual(asked, set(row["missing_prev_events"]))

    def test_refuses_an_incomplete_response(self) -> None:
        join = self.story.join
        with self.assertRaises(UnknownEvents):
            join_partially(Room(self.story.version), join._replace(auth_chain=()), "obs.example")
        with self.assertRaises(IncompleteAnswer):
            join_partially(Room(self.story.version), join._replace(state=()), "obs.example")
