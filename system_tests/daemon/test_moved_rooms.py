"""A room that moves between the writers of two real daemons, while events arrive over HTTP at both."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.threads import deferToThread

from simulator.rooms.comparison import compare_room
from synrepl.driver.blocking import BlockingDatabase
from synrepl.rooms import Event, Room
from synrepl.storage.rooms.tables.numbers import ROOM_LOCKS
from system_tests.daemon.room_listener import HeardEvent, heard_events
from tests.daemon.writers_case import WritersCase
from tests.rooms.dags import dag, dag_names

#: How often the room moves while events arrive.
MOVES = 6

#: Events of a request.
REQUEST_EVENTS = 3

#: The processes that persist.
BOTH = ("master", "w1")

#: The processes with a handler, which only workers can have: one that persists, and one that does not.
LISTENING = ("w1", "w2")


class MovedRoom(WritersCase):
    """A master and a worker that both persist rooms, another worker, and a room of the vectors."""

    stream_writers = "{events: [master, w1], backfill: [master, w1], caches: [master, w1]}"

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        names = [each for each in dag_names(250) if dag(each).version.name == "10"]
        self.dag = max(map(dag, names), key=lambda each: len(each.events))
        self.events = self.dag.events
        self.room_id = self.events[0].room_id
        for name in ("master", *LISTENING):
            path = self.directory / f"{name}.heard"
            listener = (
                "{class: 'system_tests.daemon.room_listener:RoomListener',"
                f" config: {{path: {path}}}}}"
            )
            await self.begin(
                name,
                catalogue="[events, backfill, caches]",
                streams="[]",
                rooms="{writers: [master, w1]}",
                handlers=f"[{listener if name in LISTENING else ''}]",
            )
        # Until the room is stored, the hash of its ID decides.
        status, _ = await self.post_once("master", self.events[:1])
        if status == 421:
            await self.post("w1", self.events[:1])

    async def post_once(self, name: str, events: Iterable[Event]) -> tuple[int, Any]:
        """Send events to a process; the status and the answer."""
        body = b"\n".join(each.raw for each in events)
        url = f"http://127.0.0.1:{self.http[name]}/rooms/events?version=10"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})

        def ask() -> tuple[int, Any]:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, json.load(answer)
            except HTTPError as error:
                with error:
                    return error.code, json.load(error)

        return await deferToThread(ask)

    async def post(self, name: str, events: Sequence[Event]) -> list[str]:
        """Send events to a process, or to the one that it names; the outcomes."""
        while True:
            status, found = await self.post_once(name, events)
            if status != 421:
                self.assertEqual(status, 200, found)
                return [each["outcome"] for each in found["events"]]
            self.assertNotEqual(found["assigned_to"], name)
            name = found["assigned_to"]

    async def post_all(self, name: str, events: Sequence[Event]) -> None:
        """Send events to a process, a few at a time."""
        for at in range(0, len(events), REQUEST_EVENTS):
            outcomes = await self.post(name, events[at : at + REQUEST_EVENTS])
            self.assertNotIn("refused", outcomes)

    async def move(self, writer: str) -> None:
        """Move the room with the command; from then on the other process refuses its events."""
        done = await self.run_command(
            "rooms", "move", "-c", self.directory / "master.yaml", self.room_id, writer
        )
        self.assertEqual((done.code, done.err), (0, ""))
        (other,) = set(BOTH) - {writer}
        status, found = await self.post_once(other, self.events[:1])
        self.assertEqual((status, found.get("assigned_to")), (421, writer), found)
        self.assertEqual(await self.post(writer, self.events[:1]), ["known"])

    async def test_no_event_is_lost_or_stored_twice(self) -> None:
        size = len(self.events) // MOVES + 1
        for number in range(MOVES):
            arriving = self.events[number * size : (number + 1) * size]
            # Some events arrive at both, as from two servers.
            master = [each for at, each in enumerate(arriving) if at % 3 != 1]
            worker = [each for at, each in enumerate(arriving) if at % 3 != 2]
            await gatherResults(
                [
                    Deferred.fromCoroutine(self.post_all("master", master)),
                    Deferred.fromCoroutine(self.post_all("w1", worker)),
                    Deferred.fromCoroutine(self.move(BOTH[number % 2])),
                ],
                consumeErrors=True,
            )
        await self.check_all()

    async def test_events_that_were_taken_in_are_persisted_where_they_are(self) -> None:
        await self.move("master")
        half = len(self.events) // 2
        gate = self.connect()
        with gate.cursor() as cursor:
            cursor.execute(
                "SELECT pg_advisory_lock(%s, room_no) FROM synrepl._rooms WHERE room_id = %s",
                (ROOM_LOCKS, self.room_id),
            )
            gate.commit()
        first = Deferred.fromCoroutine(self.post("master", self.events[:half]))
        await self.until_waiting(1)
        await self.run_command(
            "rooms", "move", "-c", self.directory / "master.yaml", self.room_id, "w1"
        )
        second = Deferred.fromCoroutine(self.post("w1", self.events[half:]))
        await self.until_waiting(2)
        self.assertFalse(first.called or second.called)
        with gate.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock_all()")
            gate.commit()
        await gatherResults([first, second], consumeErrors=True)
        heard = await self.check_all()
        self.assertEqual({each.writer for each in heard}, set(BOTH))

    async def until_waiting(self, count: int) -> None:
        """Wait until this number of transactions wait for the room."""
        watching = self.connect()

        async def is_waiting() -> bool:
            with watching, watching.cursor() as cursor:
                cursor.execute(
                    "SELECT count(*) FROM pg_locks"
                    " WHERE locktype = 'advisory' AND classid = %s AND NOT granted",
                    (ROOM_LOCKS,),
                )
                return bool(cursor.fetchall()[0][0] == count)

        await self.until(is_waiting)

    async def check_all(self) -> list[HeardEvent]:
        """All events are stored as in memory, and the workers heard of each once; what they heard of."""
        rows = self.stored_events()
        given = {each.event_id for each in self.events}
        self.assertEqual({event_id for event_id, _ in rows}, given)
        tokens = {event_id: stream_id for event_id, stream_id in rows if stream_id is not None}
        by_id = {each.event_id: each for each in self.events}
        room = Room(self.dag.version)
        for event_id in sorted(tokens, key=tokens.__getitem__):
            room.receive(by_id[event_id])
        with closing(BlockingDatabase(self.dsn, "test")) as database:
            database.run("compare", lambda txn: compare_room(txn, room))

        last = self.last_tokens()
        self.assertEqual(set(last), set(BOTH))
        heard_at_all = []
        for name in ("master", *LISTENING):
            for writer, token in last.items():
                await self.wait(name, "events", writer, token)
            await self.check_answers(name, room)
        for name in LISTENING:
            heard = heard_events(self.directory / f"{name}.heard")
            self.assertEqual(len(heard), len(tokens))
            self.assertEqual({each.event_id: each.token for each in heard}, tokens)
            for writer in BOTH:
                of_writer = [each.token for each in heard if each.writer == writer]
                self.assertEqual(of_writer, sorted(of_writer))
            heard_at_all.append(sorted(heard))
        self.assertEqual(*heard_at_all)
        await self.wait("master", "events", "", max(last.values()))
        return heard_at_all[0]

    def stored_events(self) -> list[tuple[str, int | None]]:
        """The events of the room, with their stream IDs."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT e.event_id, e.stream_id FROM synrepl._room_events e"
                " JOIN synrepl._rooms USING (room_no) WHERE room_id = %s",
                (self.room_id,),
            )
            return list(cursor.fetchall())

    def last_tokens(self) -> dict[str, int]:
        """The last token of each writer of ``events``."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT writer, max(stream_id) FROM synrepl.events GROUP BY 1")
            return dict(cursor.fetchall())

    async def check_answers(self, name: str, room: Room) -> None:
        """A process answers as the room in memory."""
        path = f"/rooms/{quote(self.room_id, safe='')}"
        shown = await self.ask(name, path)
        self.assertEqual(set(shown["ends"]["forward"]), room.forward_extremities)
        state = (await self.ask(name, f"{path}/state"))["state"]
        self.assertEqual(
            {(each["type"], each["state_key"]): each["event_id"] for each in state},
            room.current_state().as_dict(),
        )
