"""A recording is replayed on Redis after the first REPLICATE; later ones get the positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.tools.judge.judge import Recorded, TrafficJudge
from synrepl.tools.judge.rules import RuleSeverity
from synrepl.tools.tap.bus_replay import MOST_WRITERS, BusReplay, ChannelInUse, ReplayPositions
from synrepl.tools.tap.recording import read_recording
from synrepl.tools.tap.recording_judge import SYNAPSE_TRAITS
from synrepl.tools.tap.replay import NotForRedis, PlaybackLine, lines_for_bus, plan_replay
from synrepl.wire.dialects import CURRENT, Side
from tests.wire.recordings import CAPTURES

REPLICATE = [b"REPLICATE "]
REDIS = CAPTURES / "1.163.2" / "redis.jsonl.gz"


class BusReplayCase(TestCase):
    """A replay, and the lines that it publishes."""

    def setUp(self) -> None:
        self.clock: Any = Clock()
        self.published: list[tuple[str, bytes]] = []
        self.full: Deferred[bool] | None = None
        self.read = 0

    async def publish(self, channel: str, lines: Sequence[bytes]) -> bool:
        self.published += [(channel, line) for line in lines]
        return True if self.full is None else await self.full

    def replay(self, *script: tuple[int, bytes], begun: bool = False) -> BusReplay:
        """A replay of a script with times in ms."""

        def playback() -> Iterator[PlaybackLine]:
            for at, line in script:
                self.read += 1
                yield PlaybackLine(at, line)

        replay = BusReplay(TwistedScheduler(self.clock), "x.org", self.publish, begun)
        self.playback = Deferred.fromCoroutine(replay.play(playback(), 1.0))
        return replay

    def take_published(self) -> list[bytes]:
        """The lines published since the last call."""
        taken, self.published = self.published, []
        self.assertEqual({channel for channel, _ in taken} - {"x.org"}, set())
        return [line for _, line in taken]


class FirstRequest(BusReplayCase):
    def test_starts_the_replay(self) -> None:
        replay = self.replay((0, b"POSITION a m 1 1"))
        replay.messages_received([b"FEDERATION_ACK x 1", b"POSITION caches w 1 1"])
        self.assertEqual((self.take_published(), self.read), ([], 0))
        replay.messages_received([b"x", b"REPLICATE"])
        self.assertEqual(self.take_published(), [b"POSITION a m 1 1"])
        self.assertEqual(self.playback.result, 1)

    def test_is_not_needed_if_begun(self) -> None:
        self.replay((0, b"POSITION a m 1 1"), begun=True)
        self.assertEqual(self.take_published(), [b"POSITION a m 1 1"])

    def test_is_refused_on_a_channel_in_use(self) -> None:
        replay = self.replay((0, b"POSITION a m 1 1"))
        replay.messages_received([b"RDATA events master 5 []", *REPLICATE])
        replay.messages_received(REPLICATE)
        self.assertEqual((self.take_published(), self.read), ([], 0))
        self.check_refused(self.playback)

    def check_refused(self, playing: Deferred[int]) -> None:
        found: list[Any] = []
        playing.addErrback(lambda failure: found.append(failure.value))
        (error,) = found
        self.assertIsInstance(error, ChannelInUse)
        self.assertIn("publishes on the channel x.org", str(error))


class LaterRequests(BusReplayCase):
    script = (
        (0, b"POSITION a m 1 1"),
        (0, b"POSITION a w 7 7"),
        (1_000, b"RDATA a m 2 []"),
        (1_000, b"RDATA a m batch []"),
        (2_000, b"RDATA a m batch []"),
        (3_000, b"RDATA a m 4 []"),
        (9_000, b"POSITION a w 7 9"),
    )

    def test_get_the_current_positions(self) -> None:
        replay = self.replay(*self.script, begun=True)
        self.take_published()
        replay.messages_received(REPLICATE)
        self.assertEqual(self.take_published(), [b"POSITION a m 1 1", b"POSITION a w 7 7"])

    def test_wait_for_the_end_of_a_batch(self) -> None:
        replay = self.replay(*self.script, begun=True)
        self.clock.advance(1)
        self.take_published()
        replay.messages_received(REPLICATE)
        self.assertEqual(self.take_published(), [])
        self.clock.advance(1)
        replay.messages_received(REPLICATE)
        self.assertEqual(self.take_published(), [b"RDATA a m batch []"])
        self.clock.advance(1)
        positions = [b"POSITION a m 4 4", b"POSITION a w 7 7"]
        self.assertEqual(self.take_published(), [b"RDATA a m 4 []", *positions])

    def test_are_answered_after_the_end(self) -> None:
        replay = self.replay((0, b"POSITION a m 1 1"), (0, b"RDATA a m batch []"), begun=True)
        self.take_published()
        replay.messages_received(REPLICATE)
        self.assertEqual(self.take_published(), [b"POSITION a m 1 1"])

    def test_are_answered_together_while_redis_is_slow(self) -> None:
        replay = self.replay((0, b"POSITION a m 1 1"), begun=True)
        self.take_published()
        self.full = Deferred()
        for _ in range(100):
            replay.messages_received(REPLICATE * 10)
        self.assertEqual(self.take_published(), [b"POSITION a m 1 1"])
        full, self.full = self.full, None
        full.callback(True)
        self.assertEqual(self.take_published(), [b"POSITION a m 1 1"])

    def test_no_more_is_read_while_redis_is_slow(self) -> None:
        self.full = Deferred()
        self.replay(*((0, b"RDATA a m 1 %d" % (10**1000)) for _ in range(1_000)), begun=True)
        self.assertLess(self.read, 70)
        self.full.callback(False)
        self.assertLess(self.read, 70)
        self.assertLess(self.playback.result, 70)


class ReplayPositionsOfLines(TestCase):
    def test_follow_unordered_rows_and_ignore_other_lines(self) -> None:
        played = ReplayPositions()
        for line in (
            b"RDATA backfill m 9 []",
            b"RDATA backfill m 4 []",
            b"\xff",
            b"RDATA broken",
            b"USER_IP x",
            b"POSITION typing m 7 7",
            b"POSITION typing m 0 0",
        ):
            played.line_played(line)
        self.assertEqual(played.positions(), [b"POSITION backfill m 9 9", b"POSITION typing m 0 0"])

    def test_the_number_of_writers_is_bounded(self) -> None:
        played = ReplayPositions()
        for number in range(MOST_WRITERS + 10):
            played.line_played(b"RDATA a w%d batch []" % number)
            played.line_played(b"POSITION a w%d 1 1" % number)
        self.assertEqual(len(played.positions()), MOST_WRITERS)
        self.assertFalse(played.has_open_batch)

    @given(st.integers(0, 3_997))
    @settings(max_examples=8, deadline=None)
    def test_break_no_rule_anywhere_in_a_recording(self, at: int) -> None:
        judge, played = TrafficJudge(CURRENT, SYNAPSE_TRAITS), ReplayPositions()
        has_announced = False
        breaches = []
        for number, recorded in enumerate(read_recording(REDIS)):
            due = [recorded]
            if number >= at and not has_announced and not played.has_open_batch:
                positions = played.positions()
                main = recorded._replace(channel="localhost:18701")
                due = [*(main._replace(text=line) for line in positions), recorded]
                has_announced = True
            for each in due:
                breaches += [
                    finding
                    for finding in judge.judge(each)
                    if finding.rule.severity is RuleSeverity.BREACH
                ]
            played.line_played(recorded.text)
        self.assertEqual((has_announced, breaches), (True, []))


class LinesForBus(TestCase):
    """The lines of a recording that are published, and their channels."""

    def test_are_all_but_replicate_in_recordings_of_redis(self) -> None:
        recording = [
            Recorded(1, 5, None, b"connected"),
            Recorded(2, 6, None, b"REPLICATE ", None, "x.org"),
            Recorded(3, 7, None, b"USER_SYNC a b c start 1", None, "x.org"),
            Recorded(4, 8, None, b"USER_IP @u:x.org []", None, "x.org/USER_IP"),
            Recorded(5, 8, None, b"RDATA a m 1 []", None, "y.org"),
        ]
        self.assertEqual(
            list(lines_for_bus(recording, None, "x.org", "z.org")),
            [
                PlaybackLine(7, b"USER_SYNC a b c start 1", "z.org"),
                PlaybackLine(8, b"USER_IP @u:x.org []", "z.org/USER_IP"),
                PlaybackLine(8, b"RDATA a m 1 []", "y.org"),
            ],
        )

    def test_are_those_of_the_server_in_recordings_of_tcp(self) -> None:
        recording = [
            Recorded(1, 5, Side.SERVER, b"SERVER x.org", 2),
            Recorded(2, 5, Side.SERVER, b"POSITION a m 1 1", 2),
            Recorded(3, 5, Side.CLIENT, b"POSITION a m 2 2", 2),
            Recorded(4, 5, Side.SERVER, b"POSITION a m 3 3", 1),
            Recorded(5, 6, Side.SERVER, b"SYNC x", 2),
            Recorded(6, 7, Side.SERVER, b"RDATA a m 4 []", 2),
        ]
        self.assertEqual(
            list(lines_for_bus(recording, 2, None, "z.org")),
            [
                PlaybackLine(5, b"POSITION a m 1 1", "z.org"),
                PlaybackLine(7, b"RDATA a m 4 []", "z.org"),
            ],
        )

    def test_refuse_dialects_that_redis_does_not_have(self) -> None:
        legacy = plan_replay(CAPTURES / "1.11.1" / "live.jsonl.gz", 1.0, None, None, None)
        with self.assertRaises(NotForRedis) as caught:
            legacy.check_for_redis()
        self.assertIn("is in the legacy dialect", str(caught.exception))
        for version, name in (("1.43.0", "live"), ("1.163.2", "redis")):
            path = CAPTURES / version / f"{name}.jsonl.gz"
            plan_replay(path, 1.0, None, None, None).check_for_redis()
