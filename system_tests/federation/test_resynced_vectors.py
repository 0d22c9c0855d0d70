"""The scenarios of faster joins: what the resync makes of the tables is what it makes of the room in memory."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote

import orjson

from simulator.federation.pure_answer import PureAnswer, RefusedRequest
from synrepl.federation.requests import BytesBody, FederationAnswer, FederationRequest
from synrepl.rooms import resync
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from tests.rooms.dags import state_of
from tests.rooms.vector_files import files
from tests.services.federation.resync.random_joined_room import UncheckedEvents
from tests.services.federation.resync.resync_case import ResyncCase
from tests.storage.rooms.partial.joined_story import JoinedStory

RESIDENT = "resident.example"


class StoryServer:
    """A server that answers with what the vectors say."""

    def __init__(self, story: JoinedStory) -> None:
        self._story = story

    async def handle(self, origin: str, request: FederationRequest) -> FederationAnswer | None:
        _, _, _, name, *path = map(unquote, request.path.strip("/").split("/"))
        answer = self._answer(name, path, dict(request.query))
        return FederationAnswer(answer.status, BytesBody(answer.encoded()))

    def _answer(self, name: str, path: list[str], query: dict[str, str]) -> PureAnswer:
        pdus = self._story.data["pdus"]
        if name == "event" and path[0] in pdus:
            return PureAnswer(events={"pdus": [orjson.dumps(pdus[path[0]])]})
        found = self._story.data["state_ids"].get(query.get("event_id", ""))
        if found is None:
            return RefusedRequest(404, "M_NOT_FOUND").answer
        if name == "state_ids":
            return PureAnswer(body=dict(found))
        events = {"pdus": found["pdu_ids"], "auth_chain": found["auth_chain_ids"]}
        return PureAnswer(
            events={
                name: [orjson.dumps(pdus[each]) for each in ids] for name, ids in events.items()
            }
        )


class ResyncedVectors(ResyncCase):
    """``faster_joins/``, from the tables."""

    async def played(self, name: str, later: bool = True) -> JoinedStory:
        """A story in the store, as far as it goes without the resync."""
        story = JoinedStory(name)
        self.federation.register(RESIDENT, StoryServer(story))
        parts = replace(
            self.here.parts,
            verifier=UncheckedEvents(),
            server_name=story.data["joining_server"],
        )
        self.here.worker = type(self.here.worker)(parts, "one", ["one"])
        await self.here.joins.persist(story.join, RESIDENT)
        if later:
            await self.give(story, story.all_later())
        return story

    def check_done(self) -> None:
        job = self.sql("SELECT row(j)::text FROM synrepl._resync_jobs j")
        attempts = self.sql("SELECT array_agg(a)::text FROM synrepl._resync_attempts a")
        self.assertEqual(
            self.sql("SELECT phase FROM synrepl._resync_jobs"), "done", (job, attempts)
        )

    async def give(self, story: JoinedStory, incoming: list[IncomingEvent]) -> None:
        await self.one.persister.persist(story.room_id, story.version.name, incoming)

    async def test_the_resync_makes_of_the_tables_what_it_makes_of_the_room_in_memory(self) -> None:
        for name in files("faster_joins/*"):
            story = await self.played(name)
            await self.here.complete()
            self.check_done()
            data, join_id = story.data, story.data["join_event_id"]
            story.missing_at(join_id)
            changes = resync(story.partial, {join_id: story.state_at(join_id)})
            self.assertFalse(story.partial.is_partial)
            await self.check_equal(story.room, name, orders=False)
            await self.check_nothing_is_wrong()
            expected = data["expected"]
            current = self.sql(
                "SELECT jsonb_agg(jsonb_build_array(k.type, k.state_key, e.event_id))"
                " FROM synrepl._current_state c JOIN synrepl._room_keys k USING (room_no, slot)"
                " JOIN synrepl._room_events e USING (event_no)"
            )
            self.assertEqual(
                {(kind, key): each for kind, key, each in current},
                state_of(expected["current_state_after_resync"]),
            )
            self.assertEqual(
                set(
                    self.sql(
                        "SELECT array_agg(e.event_id) FROM synrepl._forward_extremities"
                        " JOIN synrepl._room_events e USING (event_no)"
                    )
                ),
                set(expected["forward_extremities_after_resync"]),
            )
            changed = self.sql(
                "SELECT array_agg(event_id) FROM synrepl.un_partial_stated_event"
                " WHERE rejection_status_changed"
            )
            self.assertEqual(
                set(changed or ()), {*changes.wrongly_accepted, *changes.wrongly_rejected}
            )
            self.assertEqual(
                self.sql("SELECT array_agg(room_id) FROM synrepl.un_partial_stated_room"),
                [story.room_id],
            )
            await self.forget_everything()

    async def test_events_that_come_in_the_middle_of_the_resync_lead_to_the_same(self) -> None:
        for name in files("faster_joins/*"):
            for cut in (0, 5, 20):
                story = await self.played(name, later=False)
                # Those that come after it may be soft-failed, if they count as sent just now.
                later = [each._replace(live=False) for each in story.all_later()]
                await self.give(story, later[:cut])
                await self.give_while_resyncing(story, later[cut:])
                join_id = story.data["join_event_id"]
                story.missing_at(join_id)
                resync(story.partial, {join_id: story.state_at(join_id)})
                await self.check_equal(story.room, (name, cut), orders=False)
                await self.forget_everything()

    async def give_while_resyncing(self, story: JoinedStory, later: list[IncomingEvent]) -> None:
        """Give some events after each step of the resync."""
        await self.here.worker.look()
        while later:
            await self.give(story, later[:4])
            later = later[4:]
            await self.tick()
        await self.here.complete()
        self.check_done()

    async def forget_everything(self) -> None:
        await self.empty()
        self.here.joins = type(self.here.joins)(self.one.persister, lambda: None)
        for table in ("events", "caches", "un_partial_stated_event", "un_partial_stated_room"):
            self.sql(
                f"ALTER TABLE synrepl.{table} DISABLE TRIGGER USER; TRUNCATE synrepl.{table}; ALTER TABLE synrepl.{table} ENABLE TRIGGER USER"
            )
