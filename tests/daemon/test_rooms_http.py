"""The room store over HTTP: events go in at a master, and reads are answered there."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlencode

from twisted.internet.threads import deferToThread

from synrepl.daemon.checked_config import checked_either
from synrepl.daemon.config.room_writers import (
    RoomsNeedDatabase,
    RoomStreamMissing,
    RoomWriterNeedsStream,
    check_room_writers,
)
from synrepl.rooms import Room
from tests.cli.cli_case import CliCase, InProcessMaster
from tests.rooms.dags import dag, dag_names

SETTINGS = {"catalogue": "[events, backfill, caches]", "rooms": "{writers: [master]}"}


class RoomsOverHttp(CliCase):
    """A master with a room of the vectors."""

    def setUp(self) -> None:
        super().setUp()
        self.dag = dag(next(each for each in dag_names(60) if dag(each).version.name == "10"))
        self.room = Room(self.dag.version)
        for event in self.dag.events:
            self.room.receive(event)

    async def ask(self, master: InProcessMaster, path: str, body: bytes | None = None) -> Any:
        """The status and the JSON of an answer."""
        headers = {} if body is None else {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{master.http_port}{path}"
        request = urllib.request.Request(url, data=body, headers=headers)

        def ask() -> Any:
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        return await deferToThread(ask)

    async def get(self, master: InProcessMaster, *path: str, **query: str) -> Any:
        """The JSON of an answer that must be 200."""
        whole = "/rooms" + "".join(f"/{quote(each, safe='')}" for each in path)
        status, found = await self.ask(master, f"{whole}?{urlencode(query)}")
        self.assertEqual(status, 200, found)
        return found

    async def filled(self) -> InProcessMaster:
        """A master that has taken in the room."""
        master = await self.master(**SETTINGS)
        body = b"\n".join(each.raw for each in self.dag.events)
        status, found = await self.ask(master, "/rooms/events?version=10", body)
        self.assertEqual(status, 200, found)
        outcomes = {each["event_id"]: each["outcome"] for each in found["events"]}
        self.assertEqual(outcomes.keys(), {each.event_id for each in self.dag.events})
        return master

    async def test_what_went_in_is_answered(self) -> None:
        master, room = await self.filled(), self.room
        room_id = room.room_id
        assert room_id is not None
        (listed,) = (await self.get(master))["rooms"]
        self.assertEqual((listed["room_id"], listed["version"]), (room_id, "10"))
        self.assertEqual(listed["writer"], "master")
        shown = await self.get(master, room_id)
        self.assertEqual(set(shown["ends"]["forward"]), room.forward_extremities)
        state = room.current_state().as_dict()
        found = (await self.get(master, room_id, "state"))["state"]
        self.assertEqual(
            {(each["type"], each["state_key"]): each["event_id"] for each in found}, state
        )
        newest = [each for each in room if each.accepted and each.state_after is not None][-1]
        at = newest.event.event_id
        for before, expected in (("false", newest.state_after), ("true", newest.state_before)):
            assert expected is not None
            found = (await self.get(master, room_id, "state", at=at, before=before))["state"]
            ids = {(each["type"], each["state_key"]): each["event_id"] for each in found}
            self.assertEqual(ids, expected.as_dict())
        (create,) = (await self.get(master, room_id, "state", type="m.room.create", events="true"))[
            "state"
        ]
        self.assertEqual(create["json"], json.loads(self.dag.events[0].raw))
        event = await self.get(master, "events", at)
        self.assertEqual((event["event_id"], event["room_id"]), (at, room_id))
        self.assertEqual(await self.get(master, "events", at, "json"), json.loads(newest.event.raw))
        chain = (await self.get(master, "events", at, "auth_chain"))["auth_chain"]
        self.assertLessEqual(set(newest.event.auth_event_ids), set(chain))
        first = next(iter(room)).event.event_id
        query = {"from": first, "to": at}
        changes = (await self.get(master, room_id, "diff", **query))["changes"]
        self.assertTrue(all(each["old"] != each["new"] for each in changes))
        self.assertTrue((await self.get(master, room_id, "members"))["members"])
        graph = (await self.get(master, room_id, "graph", limit="5"))["events"]
        self.assertEqual(len(graph), 5)

    async def test_explanations(self) -> None:
        master = await self.filled()
        newest = [each for each in self.room if each.accepted and each.state_after is not None][-1]
        event_id = newest.event.event_id
        found = await self.get(master, "events", event_id, "explain", "state", type="m.room.create")
        self.assertIn("nothing has changed it since", found["sentence"])
        found = await self.get(master, "events", event_id, "explain", "auth")
        self.assertIn("allowed", found["sentence"])
        found = await self.get(master, "events", event_id, "explain", "refusal")
        self.assertEqual(found["outcome"], "accepted")
        found = await self.get(
            master, "events", event_id, "explain", "visibility", user=newest.event.sender
        )
        self.assertEqual(found["membership_event_id"] is None, found["membership"] == "leave")
        self.assertIn(event_id, found["sentence"])

    async def test_errors_have_names_and_statuses(self) -> None:
        master = await self.filled()
        room_id = quote(str(self.room.room_id), safe="")
        newest = quote(self.dag.events[-1].event_id, safe="")
        for path, status, name in (
            ("/rooms/!nowhere:a.example", 404, "UnknownRoom"),
            ("/rooms/events/$nowhere", 404, "EventNotStored"),
            ("/rooms/!nowhere:a.example/state?at=" + newest, 400, "EventInOtherRoom"),
            (f"/rooms/{room_id}/state?before=true", 400, "BadRoomQuery"),
            (f"/rooms/{room_id}/state?state_key=x", 400, "BadRoomQuery"),
            (f"/rooms/{room_id}/state?att=x", 400, "BadRoomQuery"),
            (f"/rooms/{room_id}/diff?from=x", 400, "BadRoomQuery"),
            ("/rooms?limit=x", 400, "BadRoomQuery"),
            ("/rooms?limit=0", 400, "BadRoomLimit"),
            (f"/rooms/events/{newest}?as_it_came=maybe", 400, "BadRoomQuery"),
        ):
            found = await self.ask(master, path)
            self.assertEqual((found[0], found[1]["error"]), (status, name), path)
        found = await self.ask(master, "/rooms/events", b"[{}]")
        self.assertEqual((found[0], found[1]["error"]), (400, "PostedEventRefused"))
        status = (await self.ask(master, "/status"))[1]
        self.assertEqual(status["rooms"]["queued"], {"batches": 0, "bytes": 0})
        self.assertEqual(status["rooms"]["posted"]["PostedEventRefused"], 1)
        self.assertGreater(status["rooms"]["posted"]["accepted"], 0)

    async def test_rooms_of_another_writer_are_refused_by_its_name(self) -> None:
        writers = "[w1, master]"
        master = await self.master(
            **SETTINGS | {"rooms": "{writers: [w1]}"},
            stream_writers=f"{{events: {writers}, backfill: {writers}, caches: {writers}}}",
        )
        status, found = await self.ask(master, "/rooms/events", self.dag.events[0].raw)
        self.assertEqual((status, found["error"]), (421, "OtherRoomWriter"))
        self.assertIn("assigned to 'w1'", found["message"])
        self.assertEqual(found["assigned_to"], "w1")
        rooms = master.services.rooms
        assert rooms is not None
        await rooms.writers.set(["master"])
        status, found = await self.ask(master, "/rooms/events", self.dag.events[0].raw)
        self.assertEqual((status, found["events"][0]["outcome"]), (200, "accepted"))

    async def test_without_the_section_there_is_no_such_path(self) -> None:
        master = await self.master()
        status, found = await self.ask(master, "/rooms")
        self.assertEqual((status, found["error"]), (404, "NoSuchPath"))
        self.assertIsNone((await self.ask(master, "/status"))[1]["rooms"])


class RoomSettings(CliCase):
    """What a configuration of rooms must have."""

    def check(self, **settings: str) -> str:
        """The errors of a configuration; empty if it is right."""
        written = {
            "server_name": "example.com",
            "database": "postgresql://localhost/a",
            "listeners": "[{port: 0}]",
            **settings,
        }
        path = self.directory / "given.yaml"
        path.write_text("".join(f"{key}: {value}\n" for key, value in written.items()))
        try:
            config = checked_either([path])
        except Exception as error:
            return str(error)
        check_room_writers(config, _all_streams())
        return ""

    def test_the_writers_of_rooms_write_the_streams_of_rooms(self) -> None:
        self.assertEqual(self.check(rooms="{}"), "")
        self.assertEqual(self.check(rooms="{writers: [master]}"), "")
        found = self.check(rooms="{writers: [master, w1]}")
        every = "stream_writers.events, stream_writers.backfill, stream_writers.caches"
        self.assertIn(f"name it in {every}", found)
        self.assertIn("given.yaml:4", found)
        both = "[master, w1]"
        streams = f"{{events: {both}, backfill: {both}, caches: {both}}}"
        self.assertEqual(self.check(rooms="{writers: [master, w1]}", stream_writers=streams), "")
        found = self.check(rooms="{}", catalogue="[events]")
        self.assertIn("add to 'catalogue' what it lacks: backfill, caches", found)
        self.assertIn("name at least one", self.check(rooms="{writers: []}"))
        self.assertIn("appears twice", self.check(rooms="{writers: [a, a]}"))

    def test_the_errors_are_named(self) -> None:
        for each in (RoomStreamMissing, RoomWriterNeedsStream, RoomsNeedDatabase):
            self.assertIn("rooms", each.template())


def _all_streams() -> Any:
    from synrepl.streams.catalogue import Catalogue
    from synrepl.streams.synapse import SYNAPSE_STREAMS

    return Catalogue(SYNAPSE_STREAMS)
