"""Names from the bus, which any process with access to the Redis can send, are bounded."""

from __future__ import annotations

from unittest import TestCase
from unittest.mock import patch

from synrepl.services.following import follower as follower_module
from synrepl.services.following.follower import OTHERS
from tests.services.manual_pubsub import ManualPubSub, PubSubProcess


class BoundingNames(TestCase):
    def setUp(self) -> None:
        self.pubsub = ManualPubSub()
        self.reader = PubSubProcess(self.pubsub, "reader")
        self.pubsub.settle()

    def receive(self, *lines: str) -> None:
        self.reader.bus.messages_received([line.encode() for line in lines])
        self.pubsub.clock.advance(0)

    def test_ignores_writers_beyond_the_limit(self) -> None:
        with patch.object(follower_module, "MAX_WRITERS", 11):  # ten others, and its own
            self.receive(*[f"POSITION notes w{n} 0 0" for n in range(100)])
            self.receive(*[f'RDATA notes w{n} 1 ["x"]' for n in range(100)])
        follower = self.reader.follower
        named = [writer for stream, writer in follower.announced if stream == "notes"]
        self.assertEqual(len(named), 11)
        self.assertEqual(follower.counts.unknown["notes"], 2 * 90)
        warnings = [text for level, text in self.reader.log.lines if "writers" in text]
        self.assertEqual(len(warnings), 1)
        self.assertIn("stream 'notes' has more than 11 writers", warnings[0])

    def test_counts_unknown_streams_beyond_the_limit_together(self) -> None:
        with patch.object(follower_module, "MAX_UNKNOWN", 10):
            self.receive(*[f"RDATA s{n} w 1 []" for n in range(100)])
        unknown = self.reader.follower.counts.unknown
        self.assertEqual((len(unknown), unknown[OTHERS]), (11, 90))
