"""``synrepl rooms resync``, and what other commands say of a room that does not have its full state yet."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import urlopen

from twisted.internet import reactor
from twisted.internet.threads import deferToThread

from simulator.federation.hosted_room import HostedRoom
from simulator.federation.in_memory import InMemoryFederation
from simulator.federation.pure_server import PureServer
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.daemon.config.signing_key import new_signing_key
from tests.cli.cli_case import InProcessMaster
from tests.cli.rooms_case import RoomsCase
from tests.services.federation.joining_server import JoiningServer
from tests.services.world import NullLog

US = "@us:example.com"


class ResyncCommand(RoomsCase):
    """A master that may ask no other server, so that nobody helps to complete its room."""

    async def partial_room(self) -> tuple[InProcessMaster, HostedRoom]:
        """A room that was joined partially, after a first attempt to complete it."""
        key = self.directory / "signing.key"
        key.write_text(new_signing_key("1"))
        key.chmod(0o600)
        master = await self.master(
            catalogue="[events, backfill, caches, un_partial_stated_room, un_partial_stated_event]",
            rooms=f"{{signing_key: {key}, federation: {{server_acl: {{deny: ['*']}}}}}}",
        )
        rooms, partial = master.services.rooms, master.services.partial_rooms
        assert rooms is not None
        assert partial is not None
        persister = rooms.persister
        assert persister is not None
        scheduler = TwistedScheduler(reactor)
        self.addCleanup(scheduler.stop)
        federation = InMemoryFederation(scheduler)
        here = JoiningServer(
            federation,
            scheduler,
            master.running.database.database,
            persister,
            NullLog(),
            server_name="example.com",
        )
        room = PureServer("a", federation).create_room("10", "@alice:a")
        done = await here.join(room.room_id, "a", US)
        self.assertTrue(done.is_partial)
        partial.worker.wake()
        while not (await self.progress(master))["failures"]:
            await self.yield_to_processes()
        await partial.monitor.look()
        return master, room

    async def progress(self, master: InProcessMaster) -> dict[str, Any]:
        """What the command prints about the only room."""
        (found,) = (await self.rooms_json(master, "resync"))["rooms"]
        return dict(found)

    async def change(self, master: InProcessMaster, statement: str) -> None:
        await master.running.database.database.run("change", lambda txn: txn.execute(statement))

    async def asked(self, master: InProcessMaster, path: str) -> str:
        """What the master's own HTTP listener answers."""

        def get() -> str:
            with urlopen(f"http://127.0.0.1:{master.http_port}{path}") as answer:
                text: str = answer.read().decode()
                return text

        return await deferToThread(get)

    async def test_shows_why_each_server_could_not_help(self) -> None:
        master, room = await self.partial_room()
        found = await self.progress(master)
        self.assertEqual((found["room_id"], found["phase"]), (room.room_id, "ids"))
        self.assertIsNone(found["eta_s"])
        (asked,) = found["servers_asked"]
        self.assertEqual(asked["destination"], "a")
        self.assertIn("'server_acl' of 'rooms.federation' does not allow it", asked["reason"])
        shown = await self.rooms_text(master, "resync", room.room_id)
        self.assertRegex(shown, r"(?m)^what is done +waiting after \d+ attempts, none of the serv")
        self.assertRegex(shown, r"(?m)^joined through +a$")
        self.assertRegex(shown, r"(?m)^a +\S+ +\d+ +\S+ s +a is not asked: 'server_acl'")
        listed = await self.rooms_text(master, "resync")
        self.assertRegex(listed, rf"(?m)^{room.room_id} +waiting after ")

    async def test_other_commands_say_that_a_room_is_partial(self) -> None:
        master, room = await self.partial_room()
        self.assertRegex(
            await self.rooms_text(master, "list"), rf"{room.room_id}.* not yet +master"
        )
        shown = await self.rooms_text(master, "show", room.room_id)
        self.assertRegex(shown, r"(?m)^full state +not yet: waiting after \d+ attempts")
        status = (await self.run_command("status", "-c", master.path)).out
        self.assertIn("1 rooms are partial", status)
        self.assertRegex(status, rf"{room.room_id}: waiting after \d+ attempts")
        self.assertRegex(status, r"(?m)^ +a, \d+ times, .* ago: a is not asked: 'server_acl'")

    async def test_status_and_metrics_have_the_progress(self) -> None:
        master, room = await self.partial_room()
        partial = json.loads(await self.asked(master, "/status"))["rooms"]["partial"]
        (shown,) = partial["shown"]
        self.assertEqual((partial["rooms"], shown["room_id"]), (1, room.room_id))
        self.assertEqual([each["destination"] for each in shown["servers_asked"]], ["a"])
        metrics = await self.asked(master, "/metrics")
        self.assertIn("synrepl_partial_rooms 1.0", metrics)
        self.assertIn("synrepl_partial_rooms_standing_still 0.0", metrics)
        self.assertRegex(metrics, r'synrepl_partial_room_servers\{outcome="\S+"\} 1.0')

    async def test_a_room_that_stands_still_is_an_alarm(self) -> None:
        master, room = await self.partial_room()
        doctor = await self.run_command("doctor", "rooms", "-c", master.path)
        self.assertEqual((doctor.code, doctor.err), (0, ""), doctor.out)
        await self.change(
            master, "UPDATE synrepl._resync_jobs SET progress_at = now() - interval '1 hour'"
        )
        doctor = await self.run_command("doctor", "rooms", "-c", master.path)
        self.assertEqual((doctor.code, doctor.err), (1, ""))
        self.assertRegex(doctor.out, rf"(?m)^{room.room_id} +partial room stands still ")
        partial = master.services.partial_rooms
        assert partial is not None
        await partial.monitor.look()
        status = json.loads((await self.run_command("status", "-c", master.path, "--json")).out)
        self.assertTrue(status["ready"])
        self.assertRegex(status["warnings"][0], "^1 of 1 partial rooms do not become complete, !")
        self.assertIn(
            "synrepl_partial_rooms_standing_still 1.0", await self.asked(master, "/metrics")
        )

    async def test_a_room_that_waits_is_tried_again_on_request(self) -> None:
        master, room = await self.partial_room()
        await self.change(
            master, "UPDATE synrepl._resync_jobs SET next_try = now() + interval '1 day'"
        )
        self.assertGreater((await self.progress(master))["wait_s"], 80_000)
        await self.rooms_json(master, "resync", room.room_id, "--now")
        self.assertLess((await self.progress(master))["wait_s"], 1_000)

    async def test_a_room_that_is_complete_or_not_there(self) -> None:
        master = await self.filled()
        self.assertEqual(
            await self.rooms_text(master, "resync"), "all rooms have their full state\n"
        )
        self.assertEqual(
            await self.rooms_text(master, "resync", self.room_id),
            "this room was never joined with partial state\n",
        )
        done = await self.rooms(master, "resync", "!none:a")
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertEqual(done.err, "synrepl: error: room !none:a is not in the store\n")
