"""Connections of lines as Twisted's line protocol: read by read, and line by line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.protocols.basic import LineOnlyReceiver
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.line_peer import LinePeer
from synrepl.adapters.tcp.worker import UpstreamPeer, WorkerFactory
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command
from synrepl.wire.dialects import MODERN, Side
from synrepl.wire.heartbeat import PING_TIMEOUT
from synrepl.wire.session import LineTooLongToSend, ProtocolSession, SessionLimits

#: The shortest that there is.
LIMIT = 256


class _Transport(StringTransport):
    """Has the options of a socket."""

    def setTcpNoDelay(self, enabled: bool) -> None: ...

    def setTcpKeepAlive(self, enabled: bool) -> None: ...


class _Peer(LinePeer):
    """Keeps what it hears."""

    def __init__(self) -> None:
        limits = SessionLimits(line=LIMIT, peer_line=LIMIT)
        session = ProtocolSession(Side.SERVER, server_name="example.com", now=0.0, limits=limits)
        super().__init__(TwistedScheduler(Clock()), session)
        self.received: list[Command] = []

    def commands_received(self, commands: Sequence[Command]) -> None:
        self.received += commands


def connected() -> tuple[_Peer, _Transport]:
    peer, transport = _Peer(), _Transport()
    peer.makeConnection(transport)
    transport.clear()
    return peer, transport


def by_line(peer: _Peer, data: bytes) -> None:
    """As Twisted's own class does it."""
    LineOnlyReceiver.dataReceived(peer, data)


def by_read(peer: _Peer, data: bytes) -> None:
    peer.dataReceived(data)


lines = st.lists(
    st.sampled_from(
        [
            b"NAME w1",
            b"PING 1",
            b"PING 2\r",
            b"",
            b"REPLICATE",
            b"ERROR sorry",
            b"REMOTE_SERVER_UP " + b"a" * (LIMIT - 17),
            b"NAME " + b"a" * LIMIT,
            b"NONSENSE",
        ]
    ),
    max_size=8,
)


class LinePeerReading(SynchronousTestCase):
    """The peer is a ``LineOnlyReceiver``, whose own way to read gives the same."""

    def outcome(
        self, read: Callable[[_Peer, bytes], None], parts: Sequence[bytes]
    ) -> tuple[list[Command], CloseReason | None, str, bytes]:
        peer, transport = connected()
        for part in parts:
            read(peer, part)
        return peer.received, peer.session.closed_reason, str(peer.session.fault), transport.value()

    @given(lines, st.lists(st.integers(0, 1000), max_size=6), st.booleans())
    def test_reading_by_chunk_and_by_line_gives_the_same_commands(
        self, lines: list[bytes], cuts: list[int], whole: bool
    ) -> None:
        data = b"\n".join(lines) + b"\n" * whole
        ends = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
        parts = [data[start:end] for start, end in pairwise(ends)]
        self.assertEqual(self.outcome(by_line, parts), self.outcome(by_read, parts))

    def test_has_the_delimiter_and_the_limit_of_its_session(self) -> None:
        peer, _ = connected()
        self.assertIsInstance(peer, LineOnlyReceiver)
        self.assertEqual((peer.delimiter, peer.MAX_LENGTH), (b"\n", LIMIT))

    def test_refuses_a_line_that_is_too_long_before_its_end(self) -> None:
        for read in (by_line, by_read):
            peer, transport = connected()
            read(peer, b"PING 1\n" + b"a" * (LIMIT + 1))
            self.assertEqual(len(peer.received), 1)
            self.assertTrue(transport.disconnecting)
            self.assertIn(b"ERROR Line length exceeded", transport.value())

    def test_a_line_that_is_sent_waits_in_the_session_while_the_transport_is_full(self) -> None:
        peer, transport = connected()
        peer.pauseProducing()
        peer.sendLine(b"PING 7")
        self.assertEqual((transport.value(), peer.queued_lines), (b"", 1))
        peer.resumeProducing()
        self.assertEqual(transport.value(), b"PING 7\n")

    def test_a_line_that_the_peer_would_refuse_is_not_sent(self) -> None:
        peer, transport = connected()
        self.assertRaises(LineTooLongToSend, peer.sendLine, b"a" * (LIMIT + 1))
        self.assertEqual(transport.value(), b"")


class _Following:
    """Follows a master, as slowly as the test says."""

    def connected(self, upstream: UpstreamPeer) -> None: ...

    def received(self, commands: Sequence[Command]) -> None: ...

    def disconnected(self) -> None: ...


class PausedUpstreamPeer(SynchronousTestCase):
    """A worker that does not read for a while, because its handlers are behind."""

    def setUp(self) -> None:
        self.clock = Clock()
        scheduler = TwistedScheduler(self.clock)
        factory = WorkerFactory(scheduler, _Following(), "w1", None, MODERN, lambda *_, **__: None)
        self.peer = factory.buildProtocol(None)
        self.peer.makeConnection(_Transport())
        self.peer.dataReceived(b"SERVER example.com\nPING 1\n")

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.clock.advance(1.0)

    def test_a_paused_connection_does_not_time_out(self) -> None:
        self.peer.pause()
        self.pass_time(10 * PING_TIMEOUT)
        self.assertFalse(self.peer.closing)
        self.peer.resume()
        self.pass_time(PING_TIMEOUT - 1)
        self.assertFalse(self.peer.closing)

    def test_a_silent_master_times_out_after_the_pause(self) -> None:
        self.peer.pause()
        self.pass_time(10 * PING_TIMEOUT)
        self.peer.resume()
        self.pass_time(PING_TIMEOUT + 1)
        self.assertEqual(self.peer.session.closed_reason, CloseReason.PING_TIMEOUT)
