"""A small room in the store of a master, for the commands that read it."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.cli_case import CliCase, CommandResult, InProcessMaster
from tests.rooms.small_rooms import SmallRoom

SETTINGS = {"catalogue": "[events, backfill, caches]", "rooms": "{writers: [master]}"}


class RoomsCase(CliCase):
    """Has a room with a fork, an event that joins it, a rejected event, and a message at the end.

    :ivar small: the room; ``left`` and ``right`` set its topic, ``joined`` follows both
    """

    def setUp(self) -> None:
        super().setUp()
        small = self.small = SmallRoom("10")
        self.room_id = small.create.room_id
        self.left = small.topic(small.carol)
        self.right = small.topic(small.carol, origin_server_ts=10**6)
        self.joined = small.message(self.left, self.right)
        self.refused = small.event(
            "m.room.message", {"body": "no"}, [self.joined], [small.create], "@dave:d"
        )
        self.last = small.message(self.joined)
        self.events = [
            *small.base,
            small.carol,
            self.left,
            self.right,
            self.joined,
            self.refused,
            self.last,
        ]

    async def filled(self) -> InProcessMaster:
        """A master that has the room."""
        master = await self.master(**SETTINGS)
        rooms = master.services.rooms
        assert rooms is not None
        done = await rooms.intake.persist(b"\n".join(each.raw for each in self.events), "10")
        outcomes = [each.outcome.value for each in done.events]
        self.assertEqual(outcomes, ["accepted"] * 8 + ["rejected", "accepted"])
        return master

    async def rooms(
        self, master: InProcessMaster, command: str, *arguments: object
    ) -> CommandResult:
        """Run a command of ``synrepl rooms``; of several words, with spaces between them."""
        words = command.split()
        return await self.run_command("rooms", *words, "-c", master.path, *arguments)

    async def rooms_json(
        self, master: InProcessMaster, command: str, *arguments: object, code: int = 0
    ) -> Any:
        """The JSON that a command prints."""
        done = await self.rooms(master, command, *arguments, "--json")
        self.assertEqual((done.code, done.err), (code, ""), done.out)
        return json.loads(done.out)

    async def rooms_text(
        self, master: InProcessMaster, command: str, *arguments: object, code: int = 0
    ) -> str:
        """The text that a command prints."""
        done = await self.rooms(master, command, *arguments)
        self.assertEqual((done.code, done.err), (code, ""), done.out)
        return done.out
