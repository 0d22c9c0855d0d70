"""Links behave as TCP does, and fail as configured."""

from __future__ import annotations

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from synrepl.testing.links import EvenPace, Link

SLOW = EvenPace(1.0)


@implementer(IPushProducer)
class RecordingProtocol(Protocol):
    """Notes what happens to it."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.ended: type[BaseException] | None = None
        self.paused = False
        self.pauses = 0

    @property
    def received(self) -> bytes:
        return b"".join(self.pieces)

    def dataReceived(self, data: bytes) -> None:
        self.pieces.append(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        assert self.ended is None, "ended twice"
        self.ended = reason.type

    def pauseProducing(self) -> None:
        self.paused = True
        self.pauses += 1

    def resumeProducing(self) -> None:
        self.paused = False

    def stopProducing(self) -> None:
        pass


class Links(SynchronousTestCase):
    """One link with a window of 10 bytes, whose pieces take a second."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.client, self.server = RecordingProtocol(), RecordingProtocol()

    def link(self, pace: EvenPace = SLOW, window: int = 10, full: int = 5) -> Link:
        link = Link(self.clock, self.client, self.server, pace=pace, window=window, full=full)
        link.connect()
        return link

    def wait(self, seconds: int) -> None:
        self.clock.pump([1.0] * seconds)

    def test_bytes_arrive_when_time_passes(self) -> None:
        link = self.link()
        link.client.write(b"to ")
        link.client.writeSequence([b"the ", b"server"])
        link.server.write(b"back")
        self.assertEqual(self.server.received, b"")
        self.wait(1)
        self.assertEqual(self.server.pieces, [b"to the server"])
        self.assertEqual(self.client.received, b"back")

    def test_bytes_arrive_in_pieces(self) -> None:
        link = self.link(EvenPace(1.0, piece_bytes=2))
        link.client.write(b"abcde")
        self.wait(2)
        self.assertEqual(self.server.pieces, [b"ab", b"cd"])
        self.wait(1)
        self.assertEqual(self.server.received, b"abcde")

    def test_a_reader_that_pauses_makes_the_writer_wait(self) -> None:
        link = self.link()
        link.server.registerProducer(self.server, True)
        link.client.pauseProducing()
        link.server.write(b"x" * 15)
        self.wait(5)
        self.assertFalse(self.server.paused)
        link.server.write(b"y")
        self.assertTrue(self.server.paused)
        link.server.write(b"z")
        self.assertEqual(self.server.pauses, 1)
        link.client.resumeProducing()
        self.wait(1)
        self.assertFalse(self.server.paused)
        self.assertEqual(self.client.received, b"x" * 15 + b"yz")

    def test_a_lost_connection_first_delivers(self) -> None:
        link = self.link()
        link.server.write(b"last words")
        link.server.loseConnection()
        link.client.write(b"nobody reads this")
        self.wait(1)
        self.assertEqual(self.server.ended, ConnectionDone)
        self.assertEqual(self.client.received, b"last words")
        self.wait(1)
        self.assertEqual(self.client.ended, ConnectionDone)
        self.assertEqual(self.server.received, b"")
        self.assertFalse(link.open)

    def test_a_lost_connection_waits_for_a_peer_that_does_not_read(self) -> None:
        link = self.link()
        link.client.pauseProducing()
        link.server.write(b"x" * 50)
        link.server.loseConnection()
        self.wait(5)
        self.assertIsNone(self.server.ended)
        link.server.abortConnection()
        self.wait(1)
        self.assertEqual(self.server.ended, ConnectionAborted)
        self.assertEqual(self.client.ended, ConnectionLost)
        self.assertEqual(self.client.received, b"")

    def test_a_cut_delivers_the_given_number_of_bytes(self) -> None:
        for first in range(5):
            with self.subTest(first):
                self.client, self.server = RecordingProtocol(), RecordingProtocol()
                link = self.link()
                link.client.write(b"abcd")
                link.cut(first)
                self.wait(2)
                self.assertEqual(self.server.received, b"abcd"[:first])
                self.assertEqual(self.client.ended, ConnectionLost)
                self.assertEqual(self.server.ended, ConnectionLost)
                link.client.write(b"e")
                self.assertEqual(link.client.waiting, 0)

    def test_silence_closes_neither_end_and_can_be_lifted(self) -> None:
        link = self.link()
        link.silence()
        link.client.write(b"ping")
        self.wait(100)
        self.assertEqual(self.server.received, b"")
        self.assertIsNone(self.client.ended)
        link.silence(False)
        self.wait(1)
        self.assertEqual(self.server.received, b"ping")

    def test_a_close_does_not_get_through_silence(self) -> None:
        for close in ("loseConnection", "abortConnection"):
            with self.subTest(close):
                self.client, self.server = RecordingProtocol(), RecordingProtocol()
                link = self.link()
                link.silence()
                getattr(link.server, close)()
                self.wait(100)
                self.assertIsNotNone(self.server.ended)
                self.assertIsNone(self.client.ended)
                link.silence(False)
                self.wait(1)
                self.assertIsNotNone(self.client.ended)

    def test_nothing_comes_after_what_was_lost(self) -> None:
        link = self.link()
        link.silence()
        link.client.write(b"lost")
        link.cut()
        link.silence(False)
        link.client.write(b"not alone")
        self.wait(5)
        self.assertEqual(self.server.received, b"")

    def test_a_crash_is_noticed(self) -> None:
        link = self.link()
        link.client.write(b"lost")
        link.crash(link.client)
        self.wait(1)
        self.assertEqual(self.server.ended, ConnectionLost)
        self.assertEqual(self.server.received, b"")
        self.assertIsNone(self.client.ended)

    def test_the_loss_of_a_whole_machine_is_not_noticed(self) -> None:
        link = self.link()
        link.crash(link.client, noticed=False)
        link.server.write(b"anybody there?")
        self.wait(100)
        self.assertIsNone(self.server.ended)
        self.assertTrue(link.open)
        link.server.abortConnection()
        self.wait(1)
        self.assertEqual(self.server.ended, ConnectionAborted)
        self.assertIsNone(self.client.ended)
        self.assertFalse(link.open)

    def test_observers_see_writes_and_losses(self) -> None:
        link = self.link()
        heard: list[bytes] = []
        lost: list[object] = []
        link.server.sent = heard.append
        link.server.lost = lambda reason: lost.append(reason.type)
        link.server.write(b"hello")
        self.assertEqual(heard, [b"hello"])
        link.cut()
        self.wait(1)
        self.assertEqual(lost, [ConnectionLost])

    def test_leaves_no_timer_behind(self) -> None:
        link = self.link()
        link.server.registerProducer(self.server, True)
        link.server.write(b"x" * 100)
        link.client.write(b"y")
        link.cut(3)
        self.wait(2)
        self.assertEqual(self.clock.getDelayedCalls(), [])
