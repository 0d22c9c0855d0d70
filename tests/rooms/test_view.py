"""Events are judged alike in every view of a room: in memory at once, in a store over few round trips."""

from __future__ import annotations

import random
import re
from typing import Any
from unittest import TestCase

from synrepl.rooms.event import Event
from synrepl.rooms.event_types import CREATE_KEY
from synrepl.rooms.judged import Judged, NoState, NotJudged, UnknownEvents
from synrepl.rooms.judging import judge, judge_outlier, lookup_judged, lookup_judged_outlier
from synrepl.rooms.lookups import run, run_async
from synrepl.rooms.resolution_lookups import (
    ResolutionCache,
    lookup_resolved_state,
    lookup_state_after,
)
from synrepl.rooms.room import Room
from synrepl.rooms.state import StateMap
from synrepl.rooms.state_map import Delta
from synrepl.rooms.versions import RoomVersion
from tests.rooms.dags import Dag, dag, dag_names, hash_of, state_of
from tests.rooms.resolution_rooms import MadeRoom
from tests.rooms.small_rooms import SmallRoom
from tests.rooms.stored_rooms import StoredRoom, awaited

#: Larger rooms of the vectors take a simple store too long.
SMALL = 60


class MemorySubject:
    """A :class:`Room`."""

    def __init__(self, version: RoomVersion) -> None:
        self.room = Room(version)

    def judge(self, event: Event, **how: Any) -> Judged[Any]:
        before = len(self.room), self.room.forward_extremities
        judged = judge(event, self.room, **how)
        assert before == (len(self.room), self.room.forward_extremities)
        return judged

    def judge_outlier(self, event: Event) -> Judged[Any]:
        return judge_outlier(event, self.room)

    def take(self, event: Event, live: bool = True) -> None:
        self.room.receive(event, live)

    def take_outlier(self, event: Event) -> None:
        self.room.receive_outlier(event)

    def take_partial(self, event: Event, state: StateMap) -> None:
        self.room.receive_with_state(event, state, partial=True)

    def entries(self, state: Any) -> StateMap:
        return dict(state.items())

    def state_after(self, *event_ids: str) -> StateMap:
        return dict(self.room.state_after(event_ids).items())

    def current_state(self) -> StateMap:
        return dict(self.room.current_state().items())


class StoredSubject:
    """A :class:`StoredRoom`."""

    def __init__(self, version: RoomVersion) -> None:
        self.store = StoredRoom(version)
        self.cache = ResolutionCache[Any]()

    def judge(self, event: Event, **how: Any) -> Judged[Any]:
        return self.store.lookup(lookup_judged(event, cache=self.cache, **how))

    def judge_outlier(self, event: Event) -> Judged[Any]:
        return self.store.lookup(lookup_judged_outlier(event))

    def take(self, event: Event, live: bool = True) -> None:
        self.store.keep(self.judge(event, live=live))

    def take_outlier(self, event: Event) -> None:
        self.store.keep(self.judge_outlier(event))

    def take_partial(self, event: Event, state: StateMap) -> None:
        known_state = self.store.heads().empty_state.with_delta(Delta(state))
        self.store.keep(self.judge(event, state_before=known_state, partial=True, live=False))

    def entries(self, state: Any) -> StateMap:
        return self.store.entries(state)

    def state_after(self, *event_ids: str) -> StateMap:
        found = self.store.lookup(lookup_state_after(self.store.version, event_ids, self.cache))
        return self.entries(found)

    def current_state(self) -> StateMap:
        return self.state_after(*self.store.extremities.event_ids)


Subject = MemorySubject | StoredSubject


class ViewContract:
    """What every view has to do; subclasses are test cases."""

    subject: type[Subject]

    def test_rooms_of_the_vectors(self: Any) -> None:
        for name in dag_names(SMALL):
            room_dag = dag(name)
            with self.subTest(name):
                self.in_order(room_dag, self.subject(room_dag.version))

    def in_order(self: Any, room_dag: Dag, subject: Subject) -> None:
        for line in room_dag.lines:
            judged = subject.judge(line.event, live=room_dag.soft_failures)
            what = (room_dag.name, line.row["event_id"], judged.refusal)
            self.assertEqual("accept" if judged.accepted else "reject", line.row["verdict"], what)
            if not judged.accepted:
                self.assertEqual(judged.failed, line.row.get("failed_check"), what)
            if room_dag.soft_failures:
                soft = bool(line.row.get("soft_failed"))
                self.assertEqual(judged.soft_failure is not None, soft, what)
            before = subject.entries(judged.state_before)
            self.assertEqual(hash_of(before), line.row["state_before_sha256"], what)
            subject.take(line.event, room_dag.soft_failures)
        current = state_of(room_dag.head["current_state"])
        self.assertEqual(subject.current_state(), current, room_dag.name)

    def test_an_event_with_something_missing_is_refused_by_name(self: Any) -> None:
        small = SmallRoom()
        subject = self.subject(small.version)
        for event in small.base[:2]:
            subject.take(event)
        with self.assertRaisesRegex(UnknownEvents, "^" + re.escape(small.rules.event_id) + " of"):
            subject.judge(small.carol)
        with self.assertRaisesRegex(UnknownEvents, re.escape(small.rules.event_id)):
            subject.judge_outlier(small.carol)
        with self.assertRaisesRegex(NotJudged, re.escape(small.rules.event_id)):
            subject.state_after(small.rules.event_id)

    def test_an_outlier_has_no_state(self: Any) -> None:
        small = SmallRoom()
        subject = self.subject(small.version)
        for event in small.base:
            judged = subject.judge_outlier(event)
            self.assertTrue(judged.accepted)
            self.assertIsNone(judged.state_before)
            subject.take_outlier(event)
        with self.assertRaises(NoState):
            subject.state_after(small.create.event_id)
        with self.assertRaisesRegex(UnknownEvents, re.escape(small.create.event_id)):
            subject.judge(small.alice)

    def test_what_follows_a_partial_state_is_partial_and_never_soft_failed(self: Any) -> None:
        small = SmallRoom()
        subject = self.subject(small.version)
        for event in (*small.base, small.carol):
            subject.take_outlier(event)
        first = small.message()
        join = small.member("@us:here", "join", [first], [small.create, small.rules])
        subject.take_partial(join, small.state(*small.base))
        by_carol = small.event(
            "m.room.message", {}, [join], [small.create, small.carol], "@carol:a"
        )
        judged = subject.judge(by_carol)
        self.assertTrue(judged.partial)
        # What she claims takes part in check 5: her join is not in the part of the state.
        self.assertTrue(judged.accepted)
        self.assertIsNone(judged.soft_failure)

    def test_a_room_begins_with_an_empty_state(self: Any) -> None:
        small = SmallRoom()
        subject = self.subject(small.version)
        self.assertEqual(subject.state_after(), {})
        judged = subject.judge(small.create)
        self.assertEqual(subject.entries(judged.state_before), {})
        self.assertEqual(subject.entries(judged.state_after), small.state(small.create))

    def test_rejected_events_decide_over_no_other(self: Any) -> None:
        """Power levels that were rejected stay an entry of the states that have them."""
        small = SmallRoom(version="12")
        subject = self.subject(small.version)
        for event in (*small.base, small.carol):
            subject.take(event)
        content = {"state_default": 0, "users": {"@carol:a": 100}}
        cites = [small.create, small.levels, small.carol]
        grab = small.event("m.room.power_levels", content, [small.carol], cites, "@carol:a", "")
        judged = subject.judge(grab)
        self.assertFalse(judged.accepted)
        subject.take(grab)
        one, other = small.topic(grab), small.topic(small.carol)
        for event in (one, other):
            subject.take(event)
        merge = subject.judge(small.message(one, other))
        self.assertTrue(merge.accepted)
        before = subject.entries(merge.state_before)
        self.assertEqual(before["m.room.power_levels", ""], small.levels.event_id)


class MemoryViews(ViewContract, TestCase):
    """A room in memory."""

    subject = MemorySubject


class StoredViews(ViewContract, TestCase):
    """Rows, asked round by round."""

    subject = StoredSubject

    def subject_of(self, small: SmallRoom, *more: Event) -> StoredSubject:
        subject = StoredSubject(small.version)
        for event in (*small.base, small.carol, *more):
            subject.take(event)
        subject.store.rounds = 0
        return subject

    def test_an_ordinary_event_takes_two_rounds(self) -> None:
        small = SmallRoom()
        cites = [small.create, small.levels, small.alice]
        subject = self.subject_of(small)
        message = small.event("m.room.message", {}, [small.carol], cites)
        self.assertTrue(subject.judge(message).accepted)
        self.assertEqual(subject.store.rounds, 2)

    def test_check_6_takes_three_more(self) -> None:
        small = SmallRoom()
        cites = [small.create, small.levels, small.alice]
        subject = self.subject_of(small, small.message(small.carol))
        message = small.event("m.room.message", {}, [small.carol], cites)
        self.assertTrue(subject.judge(message).accepted)
        self.assertLessEqual(subject.store.rounds, 2 + 3)

    def test_rounds_of_a_resolution_do_not_grow_with_the_conflict(self) -> None:
        for version in "1", "10", "12":
            rounds = [self.rounds_of_a_merge(version, count) for count in (2, 20)]
            self.assertEqual(rounds[0], rounds[1], version)
            self.assertLessEqual(rounds[1], 10, version)

    def rounds_of_a_merge(self, version: str, count: int) -> int:
        small = SmallRoom(version)
        cites = [small.create, small.levels, small.alice]
        ends: list[Event] = []
        events: list[Event] = []
        for side in "left", "right":
            last = small.carol
            for number in range(count):
                last = small.event("t", {"side": side}, [last], cites, key=str(number))
                events.append(last)
            ends.append(last)
        subject = self.subject_of(small, *events)
        message = small.event("m.room.message", {}, ends, cites)
        self.assertTrue(subject.judge(message, live=False).accepted)
        return subject.store.rounds

    def test_what_was_resolved_once_is_not_resolved_again(self) -> None:
        small = SmallRoom()
        one, other = small.topic(small.carol), small.topic(small.carol)
        subject = self.subject_of(small, one, other)
        subject.judge(small.message(one, other))
        rounds, subject.store.rounds = subject.store.rounds, 0
        subject.judge(small.message(one, other))
        self.assertLess(subject.store.rounds, rounds)

    def test_entries_of_states_that_were_resolved_are_not_read(self) -> None:
        """A room may have thousands of extremities, and each live event is checked by their state."""
        small = SmallRoom()
        room = Room(small.version)
        tips = [small.topic(small.carol), small.topic(small.carol)]
        for event in (*small.base, small.carol, *tips):
            room.receive(event)
        states = [room.state_after([each.event_id]) for each in tips]
        cache = ResolutionCache[Any]()
        resolved = run(lookup_resolved_state(small.version, states, cache), room)
        again = lookup_resolved_state(small.version, states[::-1], cache, [CREATE_KEY])
        with self.assertRaises(StopIteration) as ended:
            next(again)
        self.assertIs(ended.exception.value, resolved)


class UnconflictedEntries(TestCase):
    """Resolving over a view gives what resolving with everything at hand gives."""

    def test_keys_that_come_up_in_the_resolution_stay_as_all_states_have_them(self) -> None:
        for version in "2", "10", "12":
            small = SmallRoom(version)
            rng = random.Random(version)
            cites = [small.create, small.levels, small.alice]
            tips, events = [small.carol], [*small.base, small.carol]
            for _ in range(40):
                follows = rng.sample(tips, min(len(tips), rng.choice([1, 1, 2])))
                event = small.event("t", {}, follows, cites, key=str(rng.randrange(6)))
                tips = [*tips, event][-4:] if rng.random() < 0.5 else [event, *tips[:3]]
                events.append(event)
            memory, stored = MemorySubject(small.version), StoredSubject(small.version)
            for event in events:
                from_memory, from_store = memory.judge(event), stored.judge(event)
                self.assertEqual(
                    memory.entries(from_memory.state_before),
                    stored.entries(from_store.state_before),
                )
                memory.take(event)
                stored.take(event)

    def test_a_failing_round_ends_the_lookup(self) -> None:
        class Broken(Exception):
            pass

        async def answer(requests: object) -> Any:
            raise Broken

        room = MadeRoom("10")
        room.begin()
        lookup = lookup_judged(room.named["create"])
        with self.assertRaises(Broken):
            awaited(run_async(lookup, answer))
        self.assertIsNone(lookup.gi_frame)  # type: ignore[attr-defined]
