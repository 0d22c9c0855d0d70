"""``synrepl watch`` on a real Redis, beside processes that play from a script or a recording."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from synrepl.adapters.redis.address import RedisAddress
from synrepl.adapters.redis.pubsub import RedisBusConnections, RedisPubSub
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.testing.redis import RedisTestServer
from tests.adapters.redis_fixture import EventWaiter
from tests.cli.cli_case import CliCase, Command
from tests.storage.foreign_databases import foreign_database
from tests.wire.recordings import records

NAME = "localhost:18701"


class FakeServerProcesses:
    """Fakes all processes of a server, which answer REPLICATE with their positions.

    :ivar asked: the messages of others
    """

    def __init__(self, redis: RedisTestServer, positions: Iterable[str]) -> None:
        self.positions = list(positions)
        self.asked: list[bytes] = []
        self.happenings = EventWaiter()
        self.wires: RedisBusConnections | None = None
        self.pubsub = RedisPubSub(
            reactor,
            TwistedScheduler(reactor),
            RedisAddress(path=redis.path),
            [NAME],
            self,
            lambda *sentence, **facts: None,
        )

    async def start(self, case: CliCase) -> FakeServerProcesses:
        """Subscribe, and wait until it is done."""
        self.pubsub.start()
        case.addCleanup(lambda: Deferred.fromCoroutine(self.pubsub.stop()))
        await self.happenings.until(lambda: self.wires is not None)
        return self

    def publish(self, *lines: str | bytes) -> None:
        """Publish lines."""
        assert self.wires is not None
        self.wires.publish(NAME, [x if isinstance(x, bytes) else x.encode() for x in lines])

    def connected(self, wires: RedisBusConnections) -> None:
        """Announce the positions, once the subscription is established."""
        self.wires = wires
        self.publish(*self.positions)
        self.happenings.happened()

    def messages_received(self, messages: Sequence[bytes]) -> None:
        """Record messages, and answer REPLICATE."""
        own = {line.encode() for line in self.positions}
        self.asked += [message for message in messages if message not in own]
        if any(message.strip() == b"REPLICATE" for message in messages):
            self.publish(*self.positions)
        self.happenings.happened()

    def disconnected(self) -> None:
        """Record that Redis is gone."""
        self.wires = None


class WatchOutput:
    """The output of a running ``synrepl watch --json``."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self._taken = 0

    async def until(self, text: str) -> Mapping[str, Any]:
        """Wait for the next line that contains ``text``, and return it."""
        while True:
            self._taken += 1
            line = (await self.command.lines(self._taken))[-1]
            if text in line:
                found: Mapping[str, Any] = json.loads(line)
                return found


class WatchRedisCase(CliCase):
    def redis(self, *settings: str, **more: Any) -> RedisTestServer:
        redis = RedisTestServer(*settings, **more)
        self.addCleanup(redis.close)
        return redis

    def arguments(self, redis: RedisTestServer, name: str = NAME) -> list[object]:
        return ["watch", "--json", "--redis", f"unix://{redis.path}", "--server-name", name]

    def streams(self, look: Mapping[str, Any]) -> dict[tuple[str, str], tuple[int, int]]:
        return {(s["stream"], s["writer"]): (s["heard"], s["rows"]) for s in look["streams"]}

    def secret(self, text: str) -> Path:
        path = self.directory / "secret"
        path.write_text(f"{text}\n")
        path.chmod(0o600)
        return path


class WatchOverRedis(WatchRedisCase):
    """``synrepl watch --redis`` without a database."""

    async def test_shows_each_writer(self) -> None:
        redis = self.redis()
        there = await FakeServerProcesses(
            redis, ["POSITION events w1 2 2", "POSITION x w2 5 5"]
        ).start(self)
        looks = WatchOutput(self.start(*self.arguments(redis)))
        look = await looks.until('"events"')
        self.assertEqual(look["where"], f"{redis.path}, channel {NAME}")
        self.assertEqual((look["dialect"], look["connected"]), ("current", True))
        self.assertEqual(self.streams(look), {("events", "w1"): (2, 0), ("x", "w2"): (5, 0)})
        self.assertEqual((look["trouble"], look["alarms"], look["bad"]), ([], [], 0))
        self.assertEqual(there.asked, [b"REPLICATE "])
        there.publish('RDATA events w1 batch ["a"]', 'RDATA events w1 3 ["b"]', "POSITION y w3 1 1")
        look = await looks.until('"y"')
        self.assertEqual(self.streams(look)["events", "w1"], (3, 2))
        self.assertEqual(there.asked[:1], [b"REPLICATE "])
        self.assertNotIn(b"REPLICATE ", there.asked[1:])

    async def test_reports_a_process_that_dies(self) -> None:
        redis = self.redis()
        one = await FakeServerProcesses(
            redis, ["POSITION events w1 2 2", "POSITION typing w1 1 1"]
        ).start(self)
        other = await FakeServerProcesses(redis, ["POSITION events w2 3 3"]).start(self)
        looks = WatchOutput(self.start(*self.arguments(redis)))
        await looks.until('"w2"')
        await other.pubsub.stop()
        one.publish("REPLICATE ")  # as any process does that starts
        look = await looks.until('"alarms":["')
        (alarm,) = look["alarms"]
        self.assertTrue(alarm.startswith("w2 has not answered REPLICATE for "), alarm)
        self.assertEqual([each["writer"] for each in look["silent_writers"]], ["w2"])
        one.publish("POSITION events w2 3 3")
        await looks.until('"alarms":[]')

    async def test_counts_messages_that_cannot_be_parsed(self) -> None:
        redis = self.redis()
        there = await FakeServerProcesses(redis, ["POSITION events w1 2 2"]).start(self)
        looks = WatchOutput(self.start(*self.arguments(redis)))
        await looks.until('"events"')
        there.publish(
            "FOO bar", b"POSITION \xff", "RDATA events w1 3 [\n]", "POSITION events w1 2 4"
        )
        look = await looks.until('"heard":4')
        self.assertEqual((look["bad"], look["connected"]), (3, True))
        (trouble,) = look["trouble"]
        expected = "3 messages could not be read; the first: invalid command: 'FOO' is not"
        self.assertTrue(trouble.startswith(expected), trouble)

    async def test_reports_a_silent_channel(self) -> None:
        redis = self.redis()
        await FakeServerProcesses(redis, ["POSITION events w1 2 2"]).start(self)
        looks = WatchOutput(self.start(*self.arguments(redis, "localhost")))
        expected = "nothing was heard on channel localhost; is that the server's name?"
        look = await looks.until(expected)
        self.assertEqual((look["trouble"], look["streams"]), ([expected], []))
        self.assertEqual((look["connected"], look["dialect"]), (False, None))

    async def test_continues_when_redis_is_back(self) -> None:
        redis = self.redis()
        there = await FakeServerProcesses(redis, ["POSITION events w1 2 2"]).start(self)
        looks = WatchOutput(self.start(*self.arguments(redis)))
        await looks.until('"connected":true')
        redis.stop()
        look = await looks.until('"connected":false')
        self.assertEqual(len(look["trouble"]), 1)
        self.assertIn("no Redis: ", look["trouble"][0])
        self.assertEqual(self.streams(look), {("events", "w1"): (2, 0)})
        there.positions = ["POSITION events w1 9 9"]
        redis.start()
        look = await looks.until('"heard":9')
        self.assertEqual((look["connected"], look["trouble"]), (True, []))
        looks.command.signal("INT")
        self.assertEqual((await looks.command.done()).code, 130)

    async def test_shows_a_table(self) -> None:
        redis = self.redis()
        await FakeServerProcesses(redis, ["POSITION events w1 2 2"]).start(self)
        done = await self.run_command(
            *[each for each in self.arguments(redis) if each != "--json"], "--seconds", 3
        )
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn(f"{redis.path}, channel {NAME}, dialect current\n", done.out)
        self.assertRegex(done.out, r"\nevents +w1 +2 +- +0 ")


class WatchRefusedByRedis(WatchRedisCase):
    """A refusal of Redis is reported with every line of output."""

    async def check(self, words: str, *arguments: object) -> None:
        command = self.start(*arguments)
        look = await WatchOutput(command).until(words)
        (trouble,) = look["trouble"]
        self.assertIn("no Redis: ", trouble)
        self.assertIn(words, trouble)
        self.assertEqual((look["connected"], look["streams"]), (False, []))
        self.assertNotIn(b"hunter2", command.out + command.err)

    async def test_reports_a_wrong_password(self) -> None:
        redis = self.redis("--requirepass", "sesame", password="sesame")
        await self.check("NOAUTH", *self.arguments(redis))
        path = self.secret("hunter2")
        await self.check("WRONGPASS", *self.arguments(redis), "--redis-password-path", path)
        path = self.secret("sesame")
        watching = self.start(*self.arguments(redis), "--redis-password-path", path)
        await WatchOutput(watching).until("nothing was heard on channel")

    async def test_reports_missing_rights(self) -> None:
        redis = self.redis()
        path = self.secret("hunter2")
        arguments = self.arguments(redis)
        arguments[3] = f"unix://watch@{redis.path}"
        arguments += ["--redis-password-path", path]
        nothing = ("reset", "resetchannels", "on", ">hunter2", "-@all")
        some = ("+ping", "+role", "+subscribe")
        for rights, words in (
            ([*some, "+publish", "&other"], "NOPERM"),
            ([*some, f"&{NAME}"], "it refuses what is said: NOPERM"),
        ):
            with self.subTest(words):
                redis.command("ACL", "SETUSER", "watch", *nothing, *rights)
                await self.check(words, *arguments)
        redis.command("ACL", "SETUSER", "watch", *nothing, *some, "+publish", f"&{NAME}")
        await WatchOutput(self.start(*arguments)).until("nothing was heard on channel")

    async def test_refuses_a_replica(self) -> None:
        redis = self.redis()
        replica = self.redis("--replicaof", "127.0.0.1", str(redis.port))
        await self.check("it is a replica", *self.arguments(replica))

    async def test_reports_an_unreachable_redis(self) -> None:
        redis = self.redis()
        redis.stop()
        await self.check("No such file", *self.arguments(redis))
        done = await self.run_command(*self.arguments(redis), "--seconds", 1)
        self.assertEqual((done.code, done.err), (1, ""))


class WatchUsage(WatchRedisCase):
    """Usage errors."""

    async def check(self, words: str, *arguments: object) -> None:
        done = await self.run_command("watch", *arguments)
        self.assertEqual((done.code, done.out), (2, ""))
        self.assertIn(words, done.err)
        self.assertNotIn("hunter2", done.err)

    async def test_requires_exactly_one_source(self) -> None:
        here = ("--tcp", "127.0.0.1:1")
        there = ("--redis", "redis://localhost", "--server-name", "a")
        for arguments in ((), (*here, *there), (*here, "--redis-password-path", "x")):
            await self.check("give exactly one of the two", *arguments)

    async def test_requires_a_valid_server_name(self) -> None:
        there = ("--redis", "redis://localhost")
        await self.check("--redis needs --server-name NAME", *there)
        await self.check("'a b' is not a valid name", *there, "--server-name", "a b")

    async def test_refuses_bad_database_options(self) -> None:
        here = ("--tcp", "127.0.0.1:1", "--database")
        await self.check("holds a password", *here, "postgresql://me:hunter2@localhost/x")
        await self.check("give one of them", *here, "dbname=x", "--database-path", "y")
        await self.check("neither a postgresql:// URI", *here, "hunter2")


class WatchOfARecording(WatchRedisCase):
    """A recording of 1.163.2, with the database saved right after."""

    async def test_matches_every_stream_and_writer_with_the_database(self) -> None:
        lines, positions = [], dict[tuple[str, str], int]()
        for record in records("1.163.2", "redis"):
            verb, _, rest = record["line"].partition(" ")
            if record["channel"] != NAME or verb == "REPLICATE":
                continue
            lines.append(record["line"])
            words = rest.split(" ", 3)
            if verb == "POSITION":
                positions[words[0], words[1]] = int(words[3])
            elif verb == "RDATA" and words[2] != "batch":
                key = words[0], words[1]
                positions[key] = max(int(words[2]), positions.get(key, 0))
        self.assertGreater(len(positions), 30)
        redis = self.redis()
        there = await FakeServerProcesses(redis, ["POSITION events persister1 1 1"]).start(self)
        path = self.secret(await foreign_database("1.163.2"))
        looks = WatchOutput(self.start(*self.arguments(redis), "--database-path", path))
        await looks.until('"committed":612')
        there.publish(*lines, "POSITION done w 1 1")
        look = await looks.until('"done"')
        found = {key: at for key, (at, _) in self.streams(look).items() if key != ("done", "w")}
        self.assertEqual(found, positions)
        self.assertEqual(look["bad"], 0)
        committed = {(s["stream"], s["writer"]): s["committed"] for s in look["streams"]}
        self.assertEqual(committed["events", "persister1"], 612)
        self.assertEqual(committed["backfill", "persister2"], 43)
        self.assertEqual(committed["caches", "writer1"], 407)
        self.assertEqual(committed["caches", "sync1"], None)
        self.assertEqual(committed["typing", "writer1"], None)
        # The last seconds before the database was taken are not in the recording.
        look = await looks.until('"alarms":["')
        (alarm,) = look["alarms"]
        self.assertIn(
            "presence of writer1 is at 80 in the database and was announced only up to 68", alarm
        )
