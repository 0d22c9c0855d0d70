"""Explanations of the rooms of the vectors agree with what the rules say about the same rooms in memory."""

from __future__ import annotations

import random
from collections import Counter

from synrepl.rooms import (
    Check,
    Event,
    ResolutionStep,
    Room,
    Viewer,
    audience_of,
    event_of,
    membership_after,
    visible_to_user,
)
from synrepl.storage.rooms.reading.event_access import EventIsOutlier, EventNotStored
from synrepl.storage.rooms.reading.explanations import StateOrigin
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from tests.rooms.dags import dag, dag_names
from tests.storage.rooms.reading_case import SMALL, ReadingCase, SharedReadingCase


class Explanations(SharedReadingCase):
    """Where entries come from, what allows events, why they were refused, who sees them."""

    async def test_an_entry_comes_from_its_event_or_from_a_resolution(self) -> None:
        rng = random.Random(1)
        seen: Counter[object] = Counter()
        for name in dag_names(SMALL)[::2]:
            room = await self.stored_room(name)
            for judged in rng.sample(list(room), min(8, len(room))):
                if judged.state_before is None or judged.state_after is None:
                    continue
                before = rng.random() < 0.5
                state = (judged.state_before if before else judged.state_after).as_dict()
                for key in rng.sample(sorted(state), min(3, len(state))):
                    found = await self.store.explain_state(
                        judged.event.event_id, key, before=before
                    )
                    here = (name, found)
                    self.assertEqual(found.event_id, state[key], here)
                    self.assertIn(found.origin, (StateOrigin.EVENT, StateOrigin.RESOLUTION), here)
                    seen[found.origin] += 1
                    if found.origin is StateOrigin.EVENT:
                        self.assertEqual(found.decided_at, state[key], here)
                        continue
                    merge = room[found.decided_at]
                    entries = set()
                    for each in merge.prev_event_ids:
                        after = room[each].state_after
                        assert after is not None
                        entries.add(after.as_dict().get(key))
                    self.assertGreater(len(entries), 1, here)
                    assert found.decision is not None
                    self.assertEqual(found.decision.chosen, state[key], here)
                    self.assertIn(state[key], found.sentence)
                    seen[found.decision.step] += 1
        for each in (StateOrigin.EVENT, ResolutionStep.POWER, ResolutionStep.MAINLINE):
            self.assertGreater(seen[each], 0, seen)

    async def test_a_key_that_was_never_set(self) -> None:
        room = await self.any_room()
        newest = [each for each in room if each.state_after is not None][-1].event.event_id
        for key in (("no.such", "key"), ("with\0nul", "")):
            found = await self.store.explain_state(newest, key)
            self.assertEqual((found.event_id, found.origin), (None, StateOrigin.BEGINNING))
            self.assertIn("nothing has ever set it", found.sentence)
        first = next(iter(room)).event.event_id
        found = await self.store.explain_state(first, ("m.room.create", ""), before=True)
        self.assertEqual((found.event_id, found.origin), (None, StateOrigin.BEGINNING))

    async def test_checks_done_again_come_to_the_same(self) -> None:
        """Those of all events that were refused, and of some others."""
        rng = random.Random(2)
        refused: Counter[object] = Counter()
        for name in dag_names(SMALL)[::2]:
            room = await self.stored_room(name)
            for judged in room:
                event = judged.event
                if judged.failed is None and rng.random() < 0.7:
                    continue
                found = await self.store.explain_auth(event.event_id)
                here = (name, found)
                by_check = {each.check: each for each in found.checks}
                fourth = by_check[Check.AUTH_EVENTS]
                self.assertEqual(fourth.is_allowed, judged.failed is not Check.AUTH_EVENTS, here)
                if judged.failed is not Check.AUTH_EVENTS and judged.state_before is not None:
                    fifth = by_check[Check.STATE_BEFORE]
                    allowed = judged.failed is not Check.STATE_BEFORE
                    self.assertEqual(fifth.is_allowed, allowed, here)
                cited = set(event.auth_event_ids)
                self.assertLessEqual(cited, {each.event_id for each in found.cited}, here)
                outcome = found.outcome
                self.assertEqual(outcome.outcome == "accepted", judged.failed is None, here)
                reason = judged.refusal or judged.soft_failure
                if reason is not None:
                    self.assertEqual(outcome.causes[0].refusal, reason, here)
                    self.assertIn(reason.sentence, outcome.sentence)
                    last = room[outcome.causes[-1].event_id]
                    last_reason = last.refusal or last.soft_failure
                    assert last_reason is not None
                    self.assertNotEqual(last_reason.code, "cites-rejected", here)
                    refused[len(outcome.causes) > 1, outcome.outcome] += 1
                self.assertIn(event.event_id, found.sentence)
        for each in ((False, "rejected"), (False, "soft-failed")):
            self.assertGreater(refused[each], 0, refused)

    async def test_visibility_is_that_of_the_rules(self) -> None:
        rng = random.Random(4)
        for name in dag_names(SMALL)[::4]:
            room = await self.stored_room(name)
            users = sorted({each.event.sender for each in room})
            users = [*rng.sample(users, min(3, len(users))), "@nobody:else.example"]
            for judged in rng.sample(list(room), min(12, len(room))):
                event, state = judged.event, judged.state_before
                for user in users:
                    found = await self.store.explain_visibility(event.event_id, Viewer(user))
                    here = (name, event.event_id, user)
                    if state is None or not judged.accepted:
                        self.assertIsNone(found.verdict, here)
                        self.assertIn("hidden", found.sentence)
                        continue
                    before = {key: room[each].event for key, each in state.items()}
                    soft_failed = judged.soft_failure is not None
                    audience = audience_of(event, before, soft_failed=soft_failed)
                    membership = membership_after(event, before, user)
                    verdict = visible_to_user(audience, Viewer(user), membership)
                    self.assertEqual(found.verdict, verdict, here)
                    self.assertEqual(found.membership, membership, here)
                    self.assertIn(verdict.explain(user), found.sentence)


class ExplainedEvents(ReadingCase):
    """Events that a test adds."""

    async def test_a_rejection_is_followed_to_its_first_cause(self) -> None:
        room = await self.any_room()
        last = [each.event for each in room if each.accepted and each.state_after is not None][-1]
        create = next(iter(room)).event

        def event(kind: str, cited: list[str], **fields: object) -> Event:
            return event_of(
                {
                    "type": kind,
                    "sender": "@stranger:z.example",
                    "room_id": last.room_id,
                    "depth": last.depth + 1,
                    "origin_server_ts": 1,
                    "prev_events": [last.event_id],
                    "auth_events": cited,
                    "hashes": {},
                    "signatures": {"z.example": {"ed25519:1": ""}},
                    **fields,
                },
                last.version,
            )

        leave = event(
            "m.room.member",
            [create.event_id],
            state_key="@stranger:z.example",
            content={"membership": "leave"},
        )
        message = event("m.room.message", [create.event_id, leave.event_id], content={})
        await self.one.persist(last.room_id, last.version, [leave, message])
        found = await self.store.explain_refusal(message.event_id)
        self.assertEqual(
            [(each.event_id, each.refusal.code) for each in found.causes],
            [(message.event_id, "cites-rejected"), (leave.event_id, "leave-not-in")],
        )
        self.assertIn("is not there to leave", found.sentence)

    async def test_unknown_events_and_outliers(self) -> None:
        room_dag = dag(dag_names(SMALL)[0])
        create = room_dag.events[0]
        await self.one.persist(
            create.room_id, room_dag.version, [IncomingEvent(create, outlier=True)]
        )
        key = ("m.room.create", "")
        with self.assertRaises(EventIsOutlier):
            await self.store.explain_state(create.event_id, key)
        found = await self.store.explain_auth(create.event_id)
        self.assertEqual([each.code for each in found.checks], ["create"])
        with self.assertRaises(EventNotStored):
            await self.store.explain_state("$nowhere", key)
        with self.assertRaises(EventNotStored):
            await self.store.explain_auth("$nowhere")
        with self.assertRaises(EventNotStored):
            await self.store.explain_refusal("$nowhere")
        with self.assertRaises(EventNotStored):
            await self.store.explain_visibility("$nowhere", Viewer("@a:b"))


class ReportedStates(ReadingCase):
    """A state that another server reported is named as that."""

    async def test_the_event_before_which_it_was_reported(self) -> None:
        room_dag = dag(max(dag_names(SMALL), key=lambda each: len(dag(each).events)))
        room = Room(room_dag.version)
        for event in room_dag.events:
            room.receive(event, False)
        full = [each for each in room if each.accepted and each.state_before is not None]
        last = next(each for each in reversed(full) if each.prev_event_ids)
        assert last.state_before is not None
        state = last.state_before.as_dict()
        needed = [each.event for each in full if each is not last]
        room_id = last.event.room_id
        outliers = [IncomingEvent(each, outlier=True) for each in needed]
        await self.one.persist(room_id, room_dag.version, outliers)
        await self.one.persist(
            room_id, room_dag.version, [IncomingEvent(last.event, state_before=state)]
        )
        for key, event_id in list(state.items())[:5]:
            found = await self.store.explain_state(last.event.event_id, key, before=True)
            self.assertEqual((found.event_id, found.origin), (event_id, StateOrigin.REPORTED))
            self.assertIn("another server reported it", found.sentence)
