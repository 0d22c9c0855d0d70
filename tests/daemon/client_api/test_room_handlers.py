"""Handlers of rooms in a worker that is killed meanwhile."""

from __future__ import annotations

from collections import Counter
from urllib.parse import quote

import psycopg2

from tests.daemon.client_api.test_processes import ProcessesCase

_BOTS = "tests.daemon.client_api.room_bots"


class RoomHandlers(ProcessesCase):
    """A bot that gets each event at least once, and one that applies each exactly once."""

    room_writers = ("master",)

    async def test_bots_get_what_was_sent_though_their_worker_is_killed(self) -> None:
        await self.begin_process("master")
        with psycopg2.connect(self.dsn) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE counted (event_id text NOT NULL)")
        notes = self.directory / "notes"
        self.handlers = (
            f"[{{class: '{_BOTS}:NotingBot', config: {{path: '{notes}'}}}},"
            f" {{class: '{_BOTS}:CountingBot'}}]"
        )
        await self.begin_process("w1")
        alice, bob = await self.client("master", "alice"), await self.client("master", "bob")
        room_id = (await self.rooms_of(alice))["master"]
        await bob.ask("POST", f"/join/{quote(room_id)}", {})
        sent = []
        for number in range(30):
            if number == 10:
                self.processes["w1"].signal("KILL")
                await self.processes["w1"].done()
            if number == 20:
                await self.begin_process("w1")
            sent.append((await alice.say(room_id, str(number), str(number))).json["event_id"])
        await bob.ask("POST", f"/rooms/{quote(room_id)}/leave", {})
        last = f"{bob.user_id} leave"
        while last not in (lines := notes.read_text().splitlines()):
            await self.scheduler.sleep(0.05)
        self.assertTrue({f"{alice.user_id} {number}" for number in range(30)} <= set(lines))
        self.assertIn(f"{bob.user_id} join", lines)
        while len(counted := self.counted()) < len(sent):
            await self.scheduler.sleep(0.05)
        self.assertEqual(counted, Counter(sent))

    def counted(self) -> Counter[str]:
        """The messages that the counting bot has in its table."""
        with psycopg2.connect(self.dsn) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT event_id FROM counted")
            return Counter(event_id for (event_id,) in cursor.fetchall())
