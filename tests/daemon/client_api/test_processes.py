"""The client API of real processes, which forward to one another and are killed."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.error import URLError
from urllib.parse import quote

import psycopg2

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.daemon.config.signing_key import new_signing_key
from tests.cli.cli_case import free_port
from tests.daemon.client_api.http_client import ClientReply, HttpMatrixClient
from tests.daemon.client_api.test_endpoints import USERS
from tests.daemon.writers_case import WritersCase, reactor

STREAMS = ("events", "backfill", "caches")


class ProcessesCase(WritersCase):
    """A master and two workers, all with a listener for clients; rooms are persisted by the workers."""

    timeout = 300
    stream_writers = "{" + ", ".join(f"{each}: [master, w1, w2]" for each in STREAMS) + "}"
    catalogue: Sequence[str] = STREAMS
    room_writers: Sequence[str] = ("w1", "w2")
    #: Handlers of the workers, as YAML.
    handlers = "[]"

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        for name, text in (
            ("users.yaml", USERS),
            ("signing.key", new_signing_key("1")),
            ("http.secret", "secret of the processes"),
        ):
            path = self.directory / name
            path.write_text(text)
            path.chmod(0o600)
        self.ports = {name: free_port() for name in ("master", "w1", "w2")}
        self.clients = {name: free_port() for name in self.ports}
        self.scheduler = TwistedScheduler(reactor)

    async def begin_process(self, name: str) -> None:
        """Start a process, on the same ports as before."""
        urls = ", ".join(
            f"{each}: 'http://127.0.0.1:{port}'"
            for each, port in self.ports.items()
            if each != name
        )
        rooms = (
            f"{{writers: [{', '.join(self.room_writers)}], writer_urls: {{{urls}}},"
            " writer_secret_path: http.secret,"
            f" client_api: {{port: {self.clients[name]}, rate_limits: {{writes: {{per_second: 1000,"
            " burst: 10000}}}}"
        )
        process = self.process(
            name,
            catalogue=f"[{', '.join(self.catalogue)}]",
            streams="[]",
            data_dir=str(self.directory),
            http=f"{{port: {self.ports[name]}, secret_path: http.secret}}",
            rooms=rooms,
            **({} if name == "master" else {"handlers": self.handlers}),
        )
        await process.stderr_containing("is ready" if name == "master" else "connected to")

    async def client(self, name: str, user: str) -> HttpMatrixClient:
        """A client at a process, which is tried until it answers."""
        client = HttpMatrixClient(self.clients[name])
        while True:
            try:
                reply = await client.log_in(user, f"password of {user}")
            except (OSError, URLError):
                await self.scheduler.sleep(0.05)
            else:
                self.assertEqual(reply.status, 200, reply)
                return client

    async def rooms_of(self, client: HttpMatrixClient) -> dict[str, str]:
        """A room of each writer, by the writer."""
        found: dict[str, str] = {}
        while len(found) < len(self.room_writers):
            reply = await client.ask("POST", "/createRoom", {"preset": "public_chat"})
            self.assertEqual(reply.status, 200, reply)
            writer = reply.headers["x-synrepl-position"].partition("~")[2].partition(".")[0]
            found[writer] = reply.json["room_id"]
        return found

    def stored(self, room_id: str) -> dict[str, list[str]]:
        """The IDs of messages in a room, by their transaction IDs, which are their bodies."""
        with psycopg2.connect(self.dsn) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT convert_from(j.raw, 'utf-8')::json #>> '{content,body}', e.event_id"
                " FROM synrepl._room_events e JOIN synrepl._room_event_json j USING (event_no)"
                " JOIN synrepl._rooms r USING (room_no) JOIN synrepl._event_types t USING (type_no)"
                " WHERE r.room_id = %s AND t.type = 'm.room.message' AND e.flags & 15 = 0",
                (room_id,),
            )
            found: dict[str, list[str]] = {}
            for body, event_id in cursor.fetchall():
                found.setdefault(body, []).append(event_id)
        return found


class SendingAcrossProcesses(ProcessesCase):
    """Requests of one process that another carries out."""

    async def test_any_process_takes_the_requests_of_all_rooms(self) -> None:
        for name in ("master", "w1", "w2"):
            await self.begin_process(name)
        clients = {name: await self.client(name, "alice") for name in self.clients}
        rooms = await self.rooms_of(clients["master"])
        for writer, room_id in rooms.items():
            sent: set[str] = set()
            for client in clients.values():
                reply = await client.say(room_id, "x", "same")
                self.assertEqual(reply.status, 200, reply)
                self.assertIn(f"~{writer}.", reply.headers["x-synrepl-position"])
                sent.add(reply.json["event_id"])
            self.assertEqual(len(sent), 3)  # each client is another device, so another transaction
            refused = await (await self.client("master", "bob")).say(room_id, "x", "1")
            self.assertEqual((refused.status, refused.errcode), (403, "M_FORBIDDEN"))
            self.assertIn("@bob:example.com", refused.json["error"])

    async def test_the_position_of_a_write_is_waited_for_elsewhere(self) -> None:
        for name in ("master", "w1", "w2"):
            await self.begin_process(name)
        client = await self.client("w1", "alice")
        rooms = await self.rooms_of(client)
        for number in range(10):
            room_id = rooms[("w1", "w2")[number % 2]]
            client.port = self.clients["w1"]
            sent = await client.say(room_id, "x", str(number))
            client.port = self.clients["w2"]
            position = sent.headers["x-synrepl-position"]
            reply = await client.ask("GET", "/account/whoami", X_Synrepl_Position=position)
            self.assertEqual(reply.status, 200, reply)
        far = await client.ask("GET", "/account/whoami", X_Synrepl_Position="events:0~w1.999999")
        self.assertEqual(far.status, 503, far)


class KilledWriters(ProcessesCase):
    """The process that persists the rooms is killed while it sends."""

    room_writers = ("w1",)

    async def test_each_transaction_has_one_event(self) -> None:
        await self.begin_process("master")
        await self.begin_process("w1")
        client = await self.client("master", "alice")
        room_id = (await self.rooms_of(client))["w1"]
        answers: dict[str, str] = {}
        unanswered = 0
        for kill in range(2):
            for number in range(40):
                txn_id = f"{kill}-{number}"
                if number == 20:
                    self.scheduler.callLater(0.004 * kill, self.processes["w1"].signal, "KILL")
                reply = await self.say_once(client, room_id, txn_id)
                if reply is not None:
                    answers[txn_id] = reply.json["event_id"]
                else:
                    unanswered += 1
            await self.processes["w1"].done()
            await self.begin_process("w1")
            for number in range(40):
                txn_id = f"{kill}-{number}"
                again = None
                while again is None:
                    again = await self.say_once(client, room_id, txn_id)
                self.assertEqual(
                    answers.setdefault(txn_id, again.json["event_id"]), again.json["event_id"]
                )
        self.assertGreater(unanswered, 0)
        stored = self.stored(room_id)
        self.assertEqual(stored, {txn_id: [event_id] for txn_id, event_id in answers.items()})

    async def say_once(
        self, client: HttpMatrixClient, room_id: str, txn_id: str
    ) -> ClientReply | None:
        """Send a message; None if the writer is away."""
        reply = await client.say(room_id, txn_id, txn_id)
        if reply.status == 503:
            await self.scheduler.sleep(0.02)
            return None
        self.assertEqual(reply.status, 200, (quote(room_id), reply))
        return reply
