"""Clients of a worker, in a room that another process has joined with partial state, and completes."""

from __future__ import annotations

from urllib.parse import quote

from twisted.internet.defer import Deferred

from simulator.federation.in_memory import InMemoryFederation
from simulator.federation.pure_server import PureServer
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.rooms.partial.swap_facts import RESYNC_STREAMS
from tests.daemon.client_api.http_client import ClientReply
from tests.daemon.client_api.test_processes import ProcessesCase
from tests.services.federation.joining_server import JoiningServer
from tests.services.world import NullLog
from tests.storage.postgres import Process
from tests.storage.rooms.store_case import PersistingProcess

STREAMS = tuple(each.name for each in RESYNC_STREAMS)

ALICE, US = "@alice:a", "@alice:example.com"


class PartialRoomsOfProcesses(ProcessesCase):
    catalogue = STREAMS
    stream_writers = "{" + ", ".join(f"{each}: [master, w1, w2]" for each in STREAMS) + "}"

    async def test_who_waits_at_a_worker_is_answered_when_the_room_is_complete(self) -> None:
        await self.begin_process("master")
        await self.begin_process("w1")
        client = await self.client("w1", "alice")
        here = await self.joining_process("w2")
        other = PureServer("a", here.federation)
        room = other.create_room("10", ALICE)
        for number in range(5):
            user = f"@u{number}:b"
            other.send(room.room_id, "m.room.member", user, {"membership": "join"}, user)
        done = await here.join(room.room_id, "a", US)
        self.assertTrue(done.is_partial)
        await other.outgoing.send_all()
        path = f"/rooms/{quote(room.room_id)}"
        while (await client.ask("GET", f"{path}/state/m.room.create")).status != 200:
            await self.scheduler.sleep(0.02)  # the worker has not heard of the join yet
        listed = Deferred.fromCoroutine(client.ask("GET", f"{path}/joined_members"))
        eager = await client.ask("GET", "/sync?timeout=0")
        self.assertNotIn("rooms", eager.json)
        self.assertFalse(listed.called)
        await here.complete()
        reply: ClientReply = await listed
        self.assertEqual(reply.status, 200, reply)
        self.assertEqual(len(reply.json["joined"]), 7)
        while True:
            news = await client.ask("GET", f"/sync?timeout=20000&since={eager.json['next_batch']}")
            if "rooms" in news.json:
                break
        self.assertEqual(list(news.json["rooms"]["join"]), [room.room_id])

    async def test_a_client_is_told_when_to_ask_again(self) -> None:
        await self.begin_process("master")
        client = await self.client("master", "alice")
        here = await self.joining_process("w2")
        room = PureServer("a", here.federation).create_room("10", ALICE)
        await here.join(room.room_id, "a", US)
        path = f"/rooms/{quote(room.room_id)}"
        while (await client.ask("GET", f"{path}/state/m.room.create")).status != 200:
            await self.scheduler.sleep(0.02)
        reply = await client.ask("GET", f"{path}/members")
        self.assertEqual((reply.status, reply.errcode), (503, "M_UNKNOWN"), reply)
        self.assertIn("asking which events its state has", reply.json["error"])
        self.assertEqual(reply.json["retry_after_ms"], 1000)
        self.assertEqual(reply.headers["retry-after"], "1")

    async def joining_process(self, name: str) -> JoiningServer:
        """A writer in the test's own process, which joins rooms and completes them."""
        process = Process(self.dsn, name)
        self.addCleanup(lambda: Deferred.fromCoroutine(process.close()))
        started = PersistingProcess(process, streams=RESYNC_STREAMS)
        await started.writer.start()
        self.addCleanup(lambda writer: Deferred.fromCoroutine(stop(writer)), started.writer)
        return JoiningServer(
            InMemoryFederation(process.scheduler),
            process.scheduler,
            process.database,
            started.persister,
            NullLog(),
            name,
            [name],
            server_name="example.com",
        )


async def stop(writer: StreamWriter) -> None:
    await writer.stop()
