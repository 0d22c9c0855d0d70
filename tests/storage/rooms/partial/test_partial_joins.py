"""Rooms that are joined with partial state, and the events that come meanwhile: in the store as in memory."""

from __future__ import annotations

from twisted.internet.defer import ensureDeferred

from synrepl.rooms import IncompleteAnswer, UnknownEvents
from synrepl.services.federation.partial_joins import PartialJoins
from synrepl.storage.rooms.partial.join_run import JoinRejected
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.rooms.tables.partial_rooms import partial_room, servers_in_room
from tests.rooms.vector_files import files
from tests.storage.rooms.partial.joined_story import JoinedStory
from tests.storage.rooms.store_case import StoreCase


class PartialStoreCase(StoreCase):
    """Rooms that are joined by the process ``one``."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.woken = 0
        self.joins = PartialJoins(self.one.persister, self.wake)

    def wake(self) -> None:
        self.woken += 1

    async def join(self, story: JoinedStory) -> None:
        done = await self.joins.persist(story.join, "resident.example", 7)
        self.assertTrue(done.is_partial)


class VectorsInTables(PartialStoreCase):
    """``faster_joins/``: states, verdicts and extremities from the tables."""

    async def test_a_join_is_stored_as_in_memory(self) -> None:
        for name in files("faster_joins/*"):
            story = JoinedStory(name)
            await self.join(story)
            await self.check_equal(story.room, name)
            rows = self.sql(
                "SELECT array_agg(e.event_id) FROM synrepl._partial_events p"
                " JOIN synrepl._room_events e USING (event_no)"
            )
            self.assertEqual(rows, [story.join.join.event_id])
            room_no = self.sql("SELECT room_no FROM synrepl._rooms")
            row = await self.read(lambda txn, at=room_no: partial_room(txn, at))
            assert row is not None
            self.assertEqual(row.join_event_id, story.join.join.event_id)
            self.assertEqual((row.joined_via, row.device_lists_stream_id), ("resident.example", 7))
            self.assertEqual(row.epoch, self.sql("SELECT epoch FROM synrepl._rooms"))
            servers = await self.read(lambda txn, at=room_no: servers_in_room(txn, at))
            self.assertLessEqual(story.join.servers, servers)
            self.assertIn(story.data["joining_server"], servers)
            self.assertEqual(self.sql("SELECT phase FROM synrepl._resync_jobs"), "ids")
            await self.empty()
        self.assertEqual(self.woken, 4)

    async def test_events_with_partial_state_are_judged_as_in_memory(self) -> None:
        for name in files("faster_joins/*"):
            story = JoinedStory(name)
            await self.join(story)
            for row in story.data["later_events"]:
                for incoming in story.next(story.event(row["event"])):
                    await self.one.persist(story.room_id, story.version, [incoming])
            await self.check_equal(story.room, name)
            self.assertEqual(
                self.sql("SELECT count(*) FROM synrepl._partial_events"),
                len(story.room.partial_event_ids),
            )
            await self.empty()

    async def test_events_of_one_batch_with_a_fresh_memory_are_judged_alike(self) -> None:
        name = files("faster_joins/*")[1]
        story = JoinedStory(name)
        await self.join(story)
        self.one.forget()
        await self.one.persist(story.room_id, story.version, story.all_later())
        await self.check_equal(story.room, name)


class BadAnswers(PartialStoreCase):
    """Nothing is left of a join that fails."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.story = JoinedStory(files("faster_joins/*")[0])
        self.answer = self.story.join

    async def check_nothing_is_left(self) -> None:
        for table in (
            "_room_events",
            "_partial_rooms",
            "_resync_jobs",
            "_room_heads",
            "_room_keys",
        ):
            self.assertEqual(self.sql(f"SELECT count(*) FROM synrepl.{table}"), 0, table)
        self.assertEqual(self.woken, 0)

    async def refused(self, *kinds: type[Exception], **changes: object) -> None:
        answer = self.answer._replace(**changes)  # type: ignore[arg-type]
        await self.assertFailure(
            ensureDeferred(self.joins.persist(answer, "resident.example")), *kinds
        )
        await self.check_nothing_is_left()

    async def test_an_answer_without_essential_state(self) -> None:
        for kind in ("m.room.create", "m.room.power_levels", "m.room.join_rules"):
            state = [each for each in self.answer.state if each.type != kind]
            await self.refused(IncompleteAnswer, UnknownEvents, state=state)

    async def test_an_answer_without_servers(self) -> None:
        await self.refused(IncompleteAnswer, servers=frozenset())

    async def test_an_answer_that_contradicts_itself(self) -> None:
        state = list(self.answer.state)
        event = next(each for each in state if each.type == "m.room.join_rules")
        other = self.story.event(event.fields | {"depth": 77})
        await self.refused(IncompleteAnswer, state=[*state, other])

    async def test_a_message_as_part_of_the_state(self) -> None:
        message = next(each for each in self.story.pdus.values() if each.state_key is None)
        await self.refused(IncompleteAnswer, state=[*self.answer.state, message])

    async def test_an_answer_without_a_part_of_the_auth_chain(self) -> None:
        await self.refused(UnknownEvents, auth_chain=[])

    async def test_a_join_that_the_rules_refuse(self) -> None:
        fields = self.answer.join.fields | {"content": {"membership": "invite"}}
        await self.refused(JoinRejected, join=self.story.event(fields))

    async def test_the_same_answer_again_changes_nothing(self) -> None:
        await self.join(self.story)
        before = self.sql("SELECT array_agg(e ORDER BY event_no)::text FROM synrepl._room_events e")
        await self.join(self.story)
        self.one.forget()
        await self.join(self.story)
        after = self.sql("SELECT array_agg(e ORDER BY event_no)::text FROM synrepl._room_events e")
        self.assertEqual(after, before)

    async def test_partial_state_needs_a_partial_room(self) -> None:
        join, state = self.answer.join, {}
        outliers = [
            IncomingEvent(each, outlier=True)
            for each in JoinedStory(files("faster_joins/*")[0]).join.auth_chain
        ]
        incoming = IncomingEvent(join, state_before=state, partial=True)
        done = await self.one.persist(self.story.room_id, self.story.version, [*outliers, incoming])
        self.assertEqual(type(done.events[-1].error).__name__, "RoomNotPartial")
