"""``synrepl tap`` on a real Redis, as processes; and its connections."""

from __future__ import annotations

import gzip
import json
import os
import resource
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import CancelledError, Deferred

from synrepl.adapters.redis.address import RedisAddress
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.tap.record_redis import RedisRecordingSource
from synrepl.cli.tap.redis import TapLink
from synrepl.cli.tap.replay_redis import RedisReplay, ReplayEnded
from synrepl.testing.redis import RedisTestServer
from synrepl.tools.tap.bus_replay import BusReplay
from synrepl.tools.tap.recorders import Published
from synrepl.tools.tap.recording import RecordingFile, read_recording
from synrepl.tools.tap.recording_judge import RecordingJudge
from synrepl.tools.tap.replay import PlaybackLine, plan_replay
from tests.adapters.redis_fixture import SERVER_NAME, EventWaiter, Process, Site
from tests.cli.cli_case import CliCase, Command, free_port
from tests.wire.recordings import CAPTURES

reactor: Any = _reactor

REDIS = CAPTURES / "1.163.2" / "redis.jsonl.gz"
NAME = "localhost:18701"


class RedisCase(CliCase):
    """A test with a Redis server."""

    def setUp(self) -> None:
        super().setUp()
        self.redis = RedisTestServer()
        self.addCleanup(self.redis.close)
        self.url = f"redis://127.0.0.1:{self.redis.port}"

    def record(self, *arguments: object) -> Command:
        """Start ``tap record --redis``."""
        return self.start("tap", "record", "--redis", self.url, *arguments)

    def publish(self, channel: str, *lines: bytes) -> None:
        """Publish lines."""
        for line in lines:
            self.redis.command("PUBLISH", channel, line)

    async def until_lines(self, name: str, count: int) -> None:
        """Wait until a recording has ``count`` lines."""
        path, scheduler = self.directory / name, TwistedScheduler(reactor)
        while True:
            data = path.read_bytes()
            if name.endswith(".gz"):
                data = zlib.decompressobj(31).decompress(data)
            if data.count(b"\n") >= count:
                return
            await scheduler.sleep(0.02)

    async def until_recorded(self, path: Path, part: bytes) -> None:
        """Wait until a recording contains ``part``."""
        while part not in path.read_bytes():
            await TwistedScheduler(reactor).sleep(0.02)

    def lines(self, name: str) -> list[tuple[str, str]]:
        """Channel and line of each object of a recording."""
        data = (self.directory / name).read_bytes()
        text = gzip.decompress(data) if name.endswith(".gz") else data
        return [(each["channel"], each["line"]) for each in map(json.loads, text.splitlines())]


class TapRecordOnRedis(RedisCase):
    async def test_records_both_channels_until_ctrl_c(self) -> None:
        command = self.record("r.jsonl.gz", "--server-name", "x.org")
        await command.stderr_containing("recording channel x.org of Redis at 127.0.0.1")
        await self.until_lines("r.jsonl.gz", 1)
        self.publish("x.org", b"POSITION a m 1 1", b"\xff")
        self.publish("x.org/USER_IP", b"USER_IP @u:x.org []")
        self.publish("y.org", b"POSITION a m 1 1")
        self.publish("x.org", b"POSITION a m 1 2")
        await self.until_lines("r.jsonl.gz", 5)
        command.signal("INT")
        done = await command.done()
        self.assertEqual((done.code, done.out), (130, ""))
        self.assertTrue(done.err.endswith("synrepl: 5 lines are in r.jsonl.gz\n"), done.err)
        self.assertEqual(
            self.lines("r.jsonl.gz"),
            [
                ("x.org", "REPLICATE "),
                ("x.org", "POSITION a m 1 1"),
                ("x.org", "\udcff"),
                ("x.org/USER_IP", "USER_IP @u:x.org []"),
                ("x.org", "POSITION a m 1 2"),
            ],
        )

    async def test_records_silently_and_with_pseudonyms(self) -> None:
        command = self.record("r", "--server-name", "x.org", "--silent", "--pseudonyms")
        await command.stderr_containing("recording")
        self.publish("x.org/USER_IP", b'USER_IP @u:x.org ["t"]')
        self.publish("x.org", b"REMOTE_SERVER_UP x.org")
        await self.until_lines("r", 2)
        self.redis.stop()
        done = await command.done()
        self.assertEqual(done.code, 1)
        self.assertIn("2 lines are in r\nsynrepl: error: the connection to Redis at ", done.err)
        self.assertIn("what was said until then is in r\n", done.err)
        (channel, line), (main, up) = self.lines("r")
        self.assertRegex(main, r"^s[0-9a-f]{16}\.invalid$")
        self.assertEqual((channel, up), (f"{main}/USER_IP", f"REMOTE_SERVER_UP {main}"))
        self.assertNotIn("x.org", line)

    async def test_warns_when_no_process_is_heard(self) -> None:
        command = self.record("r", "--server-name", "x.org", "--seconds", "0.2")
        done = await command.done()
        self.assertEqual((done.code, self.lines("r")), (0, [("x.org", "REPLICATE ")]))
        self.assertIn("nobody was heard on channel x.org; is that the server's name?\n", done.err)

    async def test_reports_a_recording_that_cannot_grow(self) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        arguments = ("--redis", self.url, "r", "--server-name", "x.org", "--silent")
        command = self.start("tap", "record", *arguments, in_new_process=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        await command.stderr_containing("recording")
        self.publish("x.org", *[b"x" * 40_000] * 3)
        done = await command.done()
        self.assertEqual(done.code, 1)
        self.assertIn("error: cannot write to r: File too large; what was said", done.err)

    async def test_refuses_bad_arguments_and_missing_rights(self) -> None:
        self.redis.command("ACL", "SETUSER", "quiet", "on", ">pw", "+@all", "-publish", "&*")
        self.redis.command("ACL", "SETUSER", "deaf", "on", ">pw", "+@all", "resetchannels")
        password = self.directory / "password"
        password.touch(mode=0o600)
        password.write_text("pw")
        wrong = self.directory / "wrong"
        wrong.touch(mode=0o600)
        wrong.write_text("hunter2")
        port = self.redis.port
        away, quiet, deaf = (
            f"redis://127.0.0.1:{free_port()}",
            f"redis://quiet@127.0.0.1:{port}",
            f"redis://deaf@127.0.0.1:{port}",
        )
        name = ("--server-name", "x.org")
        as_user = ("--redis-password-path", password)
        for arguments, code, message, left in (
            (("--redis", self.url), 2, "--redis URL --server-name NAME", False),
            (("--redis", self.url, "--server-name", "x org"), 2, "is not a valid name", False),
            (("--redis", "http://x", *name), 2, "it begins with none of redis://", False),
            (("--redis", away, *name), 1, "cannot be used: ", False),
            (("--redis", quiet, *name, "--redis-password-path", wrong), 1, "WRONGPASS", False),
            (("--redis", deaf, *name, *as_user), 1, "NOPERM", False),
            (("--redis", quiet, *name, *as_user), 1, "NOPERM", True),
        ):
            done = await self.run_command("tap", "record", "r", *arguments)
            self.assertEqual((done.code, done.out), (code, ""), (arguments, done.err))
            self.assertIn(message, done.err)
            self.assertNotIn("hunter2", done.err)
            self.assertEqual((self.directory / "r").exists(), left, arguments)


class TapReplayOnRedis(RedisCase):
    def replay(self, path: Path, *arguments: object) -> Command:
        """Start ``tap replay --redis``."""
        return self.start("tap", "replay", path, "--redis", self.url, *arguments)

    async def test_a_replay_can_be_recorded_again(self) -> None:
        replayed = self.replay(REDIS, "--speed", "0")
        await replayed.stderr_containing(
            f"waits for REPLICATE on channel {NAME} of Redis at 127.0.0.1"
        )
        recorder = self.record("r.jsonl", "--server-name", NAME)
        await replayed.stderr_containing(
            "3997 lines were played; REPLICATE is now answered with the last positions\n"
        )
        late = self.record("late.jsonl", "--server-name", NAME)
        await late.stderr_containing("recording")
        await self.until_lines("late.jsonl", 34)
        await self.until_lines("r.jsonl", 3_998 + 34)
        for each in (recorder, late):
            each.signal("INT")
            await each.done()
        replayed.signal("INT")
        self.assertEqual((await replayed.done()).code, 130)
        expected = [(each.channel, each.text.decode()) for each in read_recording(REDIS)]
        found = self.lines("r.jsonl")
        self.assertEqual(found[: len(expected)], expected)
        # Then the REPLICATE of the late recorder, and the answer to it.
        answers = self.lines("late.jsonl")
        self.assertEqual(found[len(expected) :], answers)
        self.assertEqual(answers[0], (NAME, "REPLICATE "))
        last = {}
        for _, line in expected:
            match line.split(" "):
                case ["POSITION", stream, writer, _, new]:
                    last[stream, writer] = int(new)
                case ["RDATA", stream, writer, token, *_] if token != "batch":
                    last[stream, writer] = max(int(token), last.get((stream, writer), 0))
        positions = {f"POSITION {s} {w} {token} {token}" for (s, w), token in last.items()}
        self.assertEqual({line for _, line in answers[1:]}, positions)
        judging = RecordingJudge(self.directory / "r.jsonl")
        list(judging.findings())
        self.assertEqual((judging.breaches, list(judging.known)), ({}, ["unordered"]))

    async def test_replays_a_tcp_recording_under_another_name(self) -> None:
        path = CAPTURES / "1.43.0" / "live-forks.jsonl.gz"
        arguments = ("--server-name", "x.org", "--speed", "0", "--unasked")
        recorder = self.record("r.jsonl", "--server-name", "x.org", "--silent")
        await recorder.stderr_containing("recording")
        replayed = self.replay(path, *arguments)
        said = await replayed.stderr_containing("lines were played")
        self.assertIn("plays on channel x.org of Redis", said)
        expected = [
            ("x.org", each.text.decode())
            for each in read_recording(path)
            if each.text.startswith((b"RDATA", b"POSITION"))
        ]
        await self.until_lines("r.jsonl", len(expected))
        self.assertEqual(self.lines("r.jsonl"), expected)

    async def test_ends_when_another_process_publishes(self) -> None:
        replayed = self.replay(REDIS)
        await replayed.stderr_containing("waits")
        self.publish(NAME, b"RDATA events master 5 []")
        done = await replayed.done()
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn(f"another process publishes on the channel {NAME} already", done.err)

    async def test_ends_when_redis_goes_away(self) -> None:
        for arguments, words in (((), "waits"), (("--unasked",), "plays")):
            self.redis.restart()
            replayed = self.replay(REDIS, *arguments)
            await replayed.stderr_containing(words)
            self.redis.stop()
            done = await replayed.done()
            self.assertEqual(done.code, 1)
            self.assertIn("error: the connection to Redis at 127.0.0.1", done.err)

    async def test_refuses_bad_arguments(self) -> None:
        (self.directory / "cut.jsonl").write_text(
            '{"t":1,"channel":"x","line":"POSITION a m 1 1"}\nnot JSON\n'
        )
        away = f"redis://127.0.0.1:{free_port()}"
        legacy = CAPTURES / "1.11.1" / "live.jsonl.gz"
        at_once = ("--unasked", "--speed", "0")
        for arguments, code, message in (
            ((REDIS, "--redis", self.url, "--port", "1"), 2, "give one of the two"),
            ((REDIS, "--unasked"), 2, "give one of the two"),
            ((REDIS, "--redis", away), 1, "cannot be used: "),
            ((legacy, "--redis", self.url), 1, "is in the legacy dialect"),
            ((REDIS, "--redis", self.url, "--server-name", "x/y"), 2, "is not a valid name"),
            (("cut.jsonl", "--redis", self.url, *at_once), 1, "cut.jsonl, line 2: it is no JSON"),
        ):
            done = await self.run_command("tap", "replay", *arguments)
            self.assertEqual((done.code, done.out), (code, ""), (arguments, done.err))
            self.assertIn(message, done.err)


class TapLinkBackPressure(RedisCase):
    """Flow control between Redis and a replay, in this process."""

    async def test_reads_no_more_than_redis_acknowledges(self) -> None:
        scheduler, happenings = TwistedScheduler(reactor), EventWaiter()
        link = TapLink(reactor, scheduler, RedisAddress(path=self.redis.path))
        self.addCleanup(lambda: Deferred.fromCoroutine(link.close()))
        received: list[bytes] = []
        read = 0

        def receive(messages: Sequence[Published]) -> None:
            received.extend(message.text for message in messages)
            happenings.happened()

        def part() -> Iterator[PlaybackLine]:
            nonlocal read
            for read in range(1, 1_001):
                yield PlaybackLine(0, b"RDATA a m %d %s" % (read, b"x" * 2_000))

        publisher = await link.publisher()
        await link.listen(["x"], receive)
        self.redis.freeze()
        replay = BusReplay(scheduler, "x", publisher.publish_some, True)
        playing = Deferred.fromCoroutine(replay.play(part(), 0.0))
        self.assertLess(read, 40)
        self.redis.thaw()
        self.assertEqual(await playing, 1_000)
        await happenings.until(lambda: len(received) == 1_000)

    async def test_nothing_is_acknowledged_once_redis_is_gone(self) -> None:
        link = TapLink(reactor, TwistedScheduler(reactor), RedisAddress(path=self.redis.path))
        publisher = await link.publisher()
        self.redis.freeze()
        taken = [
            Deferred.fromCoroutine(publisher.publish_some("x", [b"1", b"2"])) for _ in range(2)
        ]
        self.redis.stop()
        self.assertEqual([await each for each in taken], [False, False])
        self.assertFalse(await publisher.publish_some("x", [b"3"]))
        self.assertIsNotNone(await link.until_over())
        await link.close()

    async def test_does_not_report_unacknowledged_lines_as_played(self) -> None:
        stage = RedisReplay(RedisAddress(path=self.redis.path), NAME, unasked=True)
        notices: list[str] = []
        begun: Deferred[None] = Deferred()

        def notify(text: str) -> None:
            notices.append(text)
            if not begun.called:
                self.redis.freeze()
                begun.callback(None)

        playing = Deferred.fromCoroutine(
            stage.play(reactor, plan_replay(REDIS, 0.0, None, None, None), notify)
        )
        await begun
        self.redis.stop()
        with self.assertRaises(ReplayEnded):
            await playing
        await TwistedScheduler(reactor).sleep(0)  # let pending calls run
        self.assertEqual([text.partition(" ")[0] for text in notices], ["plays"])


class TapOfOwnProcesses(RedisCase):
    async def test_our_own_processes_break_no_rule(self) -> None:
        site, address = Site(), RedisAddress(path=self.redis.path)
        one = await Process(site, "one", address).start(self)
        path = self.directory / "r.jsonl"
        file = RecordingFile(path)
        source = RedisRecordingSource(address, SERVER_NAME, silent=False, pseudonyms=None)
        begun: Deferred[None] = Deferred()

        def notify(text: str) -> None:
            if text.startswith("recording"):
                begun.callback(None)

        running = Deferred.fromCoroutine(source.record(reactor, file, None, notify))
        await begun
        two = await Process(site, "two", address).start(self)
        texts = [f"{number}" for number in range(200)]
        await one.publish(*texts[:100])
        await two.publish(*texts[:100], facts=False)
        await one.receives("two", texts[:100])
        await two.stop()
        again = await Process(site, "two", address).start(self)
        await again.publish(*texts[100:])
        await one.publish(*texts[100:], facts=False)
        await one.receives("two", texts)
        await again.receives("one", texts)
        # The recorder has a connection of its own: what others heard, it may not have read yet.
        self.publish(SERVER_NAME, b"REMOTE_SERVER_UP the.end")
        await self.until_recorded(path, b"the.end")
        running.cancel()
        await self.assertFailure(running, CancelledError)
        file.close()
        found = [each.text for each in read_recording(path)]
        for line in (b"REPLICATE ", b"POSITION notes two ", b"RDATA notes one batch "):
            self.assertTrue([text for text in found if text.startswith(line)], line)
        self.assertEqual(list(RecordingJudge(path).findings()), [])


class RecordingOfChannels(CliCase):
    async def test_channels_are_written_and_read_again(self) -> None:
        path = self.directory / "r.jsonl"
        file = RecordingFile(path)
        file.publish(7, "x.org/USER_IP", [b"USER_IP @u:x []", b"\xff"])
        file.close()
        found = [(each.at_ms, each.channel, each.text) for each in read_recording(path)]
        self.assertEqual(
            found, [(7, "x.org/USER_IP", b"USER_IP @u:x []"), (7, "x.org/USER_IP", b"\xff")]
        )
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
