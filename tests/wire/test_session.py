from __future__ import annotations

from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.wire import commands as c
from synrepl.wire.closing import CloseReason, FailedToKeepUp, PingTimeout, WrongRemote
from synrepl.wire.codec import UnknownCommand
from synrepl.wire.dialects import (
    CURRENT,
    DIALECTS,
    LEGACY,
    MODERN,
    TRANSITIONAL,
    TRANSITIONAL_OR_MODERN,
    Dialect,
    Side,
)
from synrepl.wire.errors import LocalProtocolError
from synrepl.wire.fields import Unwritable
from synrepl.wire.heartbeat import Heartbeat, HeartbeatAction
from synrepl.wire.lines import BadLineLimit, LineChunk
from synrepl.wire.session import (
    DialectUnknown,
    LineTooLongToSend,
    NoDialect,
    NotOursToSend,
    NotStarted,
    ProtocolSession,
    SessionLimits,
)
from tests.wire.pair import ConnectionPair

SERVER, CLIENT = Side.SERVER, Side.CLIENT
NOW = 1000.0


def started(side: Side, dialect: Dialect | None = MODERN, **more: object) -> ProtocolSession:
    """A session that has sent its greeting."""
    limits = SessionLimits(**more)  # type: ignore[arg-type]
    session = ProtocolSession(
        side, server_name="s", name="w1", dialect=dialect, now=NOW, limits=limits
    )
    session.start()
    session.data_to_send()
    return session


class Transcripts(TestCase):
    """Lines on the wire between two real sessions."""

    maxDiff = None

    def test_greets_in_the_modern_dialect(self) -> None:
        pair = ConnectionPair(MODERN)
        pair.client.send(c.Replicate(), pair.now)
        pair.deliver()
        self.assertEqual(
            pair.transcript,
            [
                "S> SERVER example.com",
                "S> PING 1000000",
                "C> NAME w1",
                "C> PING 1000000",
                "C> REPLICATE ",
            ],
        )
        self.assertIs(pair.server.dialect, MODERN)
        self.assertEqual(pair.server.peer_name, "w1")
        self.assertEqual(pair.client.peer_server, "example.com")
        self.assertEqual(
            pair.received[SERVER], [c.Name("w1"), c.Ping("1000000"), c.Replicate(None, None)]
        )

    def test_legacy_clients_are_recognised_by_their_replicate(self) -> None:
        pair = ConnectionPair(LEGACY)
        pair.client.send(c.UserSync("ignored", "@a:b", None, True, 5), pair.now)
        pair.client.send(c.Replicate("events", 53), pair.now)
        pair.deliver()
        self.assertIs(pair.server.dialect, LEGACY)
        pair.server.send(c.Rdata("events", "master", 54, b"[1]"), pair.now)
        pair.server.send(c.Position("events", "master", 53, 54), pair.now)
        self.assertEqual(pair.deliver(), ["S> RDATA events 54 [1]", "S> POSITION events 54"])
        self.assertEqual(
            pair.received[SERVER][2:],
            [c.UserSync(None, "@a:b", None, True, 5), c.Replicate("events", 53)],
        )

    def test_silence_is_pinged(self) -> None:
        pair = ConnectionPair()
        pair.deliver()
        self.assertEqual(pair.advance(4.9), [])
        self.assertEqual(pair.advance(0.2), ["S> PING 1005000", "C> PING 1005000"])
        pair.advance(3)
        pair.server.send(c.RemoteServerUp("x"), pair.now)
        pair.deliver()
        self.assertEqual(pair.advance(4), ["C> PING 1010000"])
        self.assertEqual(pair.advance(60)[-1][2:7], " PING")
        self.assertFalse(pair.server.closing or pair.client.closing)

    def test_refuses_the_wrong_server(self) -> None:
        pair = ConnectionPair(expected="other.example")
        self.assertEqual(
            pair.deliver(),
            [
                "S> SERVER example.com",
                "S> PING 1000000",
                "C> NAME w1",
                "C> PING 1000000",
                "C> ERROR Wrong remote",
            ],
        )
        self.assertIs(pair.client.closed_reason, CloseReason.WRONG_REMOTE)
        self.assertIsInstance(pair.client.fault, WrongRemote)
        self.assertIn("other.example", str(pair.client.fault))
        self.assertEqual(pair.server.peer_error, "Wrong remote")
        self.assertFalse(pair.server.closing)
        self.assertEqual(pair.server.connection_lost(), 0)
        self.assertIs(pair.server.closed_reason, CloseReason.PEER_CLOSED)

    def test_sends_an_error_when_shutting_down(self) -> None:
        pair = ConnectionPair(expected=None)
        pair.deliver()
        pair.server.close(CloseReason.SHUTTING_DOWN, "server shutting down")
        pair.server.close(CloseReason.LOCAL, "again")
        self.assertEqual(pair.deliver(), ["S> ERROR server shutting down"])
        self.assertIs(pair.server.closed_reason, CloseReason.SHUTTING_DOWN)
        self.assertEqual(pair.received[CLIENT][-1], c.Error("server shutting down"))
        self.assertFalse(pair.client.closing)


class Receiving(TestCase):
    """Bytes in, commands out."""

    def test_commands_before_a_fault_count_and_those_after_it_do_not(self) -> None:
        session = started(SERVER)
        commands = session.receive(b"PING 1\nNAME x\nFOO\nNAME y\n", NOW)
        self.assertEqual(commands, [c.Ping("1"), c.Name("x")])
        self.assertEqual(session.peer_name, "x")
        self.assertTrue(session.closing)
        self.assertIs(session.closed_reason, CloseReason.PROTOCOL_ERROR)
        self.assertIsInstance(session.fault, UnknownCommand)
        self.assertRegex(session.data_to_send(), rb"\AERROR invalid command: 'FOO' [^\n]*\n\Z")
        self.assertEqual(session.receive(b"PING 1\n", NOW), [])
        self.assertIsNone(session.next_tick)
        session.tick(NOW + 100)
        self.assertEqual(session.data_to_send(), b"")

    def test_refuses_a_line_that_is_too_long(self) -> None:
        session = started(SERVER)
        self.assertEqual(session.receive(b"NAME x\n" + b"A" * 1_000_000, NOW), [c.Name("x")])
        self.assertIs(session.closed_reason, CloseReason.LINE_TOO_LONG)
        self.assertTrue(session.data_to_send().startswith(b"ERROR Line length exceeded"))

    def test_refuses_a_line_that_is_not_utf8(self) -> None:
        session = started(SERVER)
        session.receive(b"NAME \xff\n", NOW)
        self.assertIs(session.closed_reason, CloseReason.NOT_UTF8)
        self.assertIn(b"not UTF-8", session.data_to_send())

    def test_a_second_dialect_is_refused(self) -> None:
        for first, second in ((b"REPLICATE\n", b"REPLICATE a 1\n"), (b"REPLICATE a 1\n",) * 2):
            session = started(SERVER, None)
            self.assertEqual(len(session.receive(first, NOW)), 1)
            session.receive(second, NOW)
            self.assertEqual(session.closing, first != second)

    def test_the_rest_of_the_packet_is_in_the_dialect_just_learnt(self) -> None:
        session = started(SERVER, None)
        line = b"USER_SYNC @a:b start 1\n"
        self.assertEqual(len(session.receive(line + b"REPLICATE\n" + line, NOW)), 2)
        self.assertIs(session.closed_reason, CloseReason.PROTOCOL_ERROR)

    def test_the_modern_dialect_is_a_setting(self) -> None:
        session = ProtocolSession(SERVER, server_name="s", now=NOW, modern=TRANSITIONAL)
        session.start()
        session.receive(b"REPLICATE\n", NOW)
        self.assertIs(session.dialect, TRANSITIONAL)

    def test_the_first_position_shows_a_client_its_servers_dialect(self) -> None:
        for line, position, dialect in (
            (b"POSITION events m 2\n", c.Position("events", "m", None, 2), TRANSITIONAL),
            (b"POSITION events m 1 2\n", c.Position("events", "m", 1, 2), MODERN),
        ):
            session = started(CLIENT, TRANSITIONAL_OR_MODERN)
            row = b"RDATA events m 2 []\n"
            self.assertEqual(session.receive(row, NOW), [c.Rdata("events", "m", 2, b"[]")])
            self.assertIsNone(session.dialect)
            self.assertEqual(session.receive(row + line, NOW)[1:], [position])
            self.assertIs(session.dialect, dialect)
            self.assertEqual(len(session.receive(row, NOW)), 1)
            other = b"POSITION a m 1\n" if dialect is MODERN else b"POSITION a m 1 1\n"
            self.assertEqual(session.receive(other, NOW), [])
            self.assertIs(session.closed_reason, CloseReason.PROTOCOL_ERROR)

    def test_a_clients_commands_need_no_position_first(self) -> None:
        said = (
            c.Replicate(),
            c.UserSync("i", "@a:b", None, True, 5),
            c.ClearUserSync("i"),
            c.FederationAck("f1", 3),
            c.RemoteServerUp("example.org"),
            c.UserIp("@a:b", "t", "::1", "curl", None, 5),
        )
        undecided = started(CLIENT, TRANSITIONAL_OR_MODERN)
        for dialect in (TRANSITIONAL, MODERN):
            decided = started(CLIENT, dialect)
            for command in said:
                undecided.send(command, NOW)
                decided.send(command, NOW)
                self.assertEqual(undecided.data_to_send(), decided.data_to_send())

    def test_a_missing_server_line_is_tolerated(self) -> None:
        session = started(CLIENT)
        self.assertEqual(len(session.receive(b"PING 1\nPOSITION a m 0 0\n", NOW)), 2)
        self.assertFalse(session.closing)

    def test_reports_an_unfinished_line_at_the_end(self) -> None:
        session = started(SERVER)
        self.assertEqual(session.receive(b"PING 1\nPING", NOW), [c.Ping("1")])
        self.assertEqual(session.connection_lost(), 4)
        self.assertIs(session.closed_reason, CloseReason.PEER_CLOSED)

    def test_a_long_name_is_shortened(self) -> None:
        session = started(SERVER)
        session.receive(b"NAME " + b"n" * 16000 + b"\n", NOW)
        self.assertEqual(session.peer_name, "n" * 200)


class Sending(TestCase):
    """Calls of our own code; a refusal changes nothing."""

    def test_refuses_commands_that_may_not_be_sent(self) -> None:
        undecided = started(SERVER, None)
        decided = started(SERVER, MODERN)
        long_row = b'"%s"' % (b"x" * 16_384)
        refused: list[tuple[ProtocolSession, c.Command, type[LocalProtocolError]]] = [
            (decided, c.Replicate(), NotOursToSend),
            (decided, c.LockReleased("a", "b", "c"), NotOursToSend),
            (decided, c.Rdata("a b", "m", 1, b"[]"), Unwritable),
            (decided, c.Rdata("a", "m", 1, long_row), LineTooLongToSend),
            (undecided, c.Rdata("a", "m", 1, b"[]"), DialectUnknown),
            (undecided, c.Position("a", "m", 1, 1), DialectUnknown),
        ]
        for session, command, refusal in refused:
            with self.subTest(command=command.verb, refusal=refusal):
                with self.assertRaises(refusal):
                    session.send(command, NOW)
                self.assertEqual((session.data_to_send(), session.queued_lines), (b"", 0))
                self.assertFalse(session.closing)
        self.assertTrue(undecided.send(c.RemoteServerUp("x"), NOW))

    def test_sends_a_line_of_the_maximum_length(self) -> None:
        session = started(SERVER)
        row = b'"%s"' % (b"x" * (16_384 - len(b'RDATA a m 1 ""')))
        session.send(c.Rdata("a", "m", 1, row), NOW)
        self.assertEqual(len(session.data_to_send()), 16_385)

    def test_sends_a_chunk_without_copying_it(self) -> None:
        session = started(SERVER)
        data = b"RDATA a m 1 []\nRDATA a m 2 []\n"
        session.send_chunk(data, NOW)
        session.send_chunk(LineChunk.of(data), NOW)
        self.assertEqual(session.queued_lines, 4)
        self.assertEqual(session.data_to_send(), data * 2)
        shared = LineChunk.of(data)
        session.send_chunk(shared, NOW)
        self.assertIs(session.data_to_send(), shared.data)
        for bad in (b"x" * 16_385 + b"\n", LineChunk(b"", 1, 16_385)):
            with self.assertRaises(LineTooLongToSend):
                session.send_chunk(bad, NOW)
        self.assertEqual(session.data_to_send(), b"")

    def test_refuses_calls_before_the_start(self) -> None:
        session = ProtocolSession(SERVER, server_name="s", dialect=MODERN, now=NOW)
        self.assertIsNone(session.next_tick)
        session.tick(NOW + 100)
        for call in (
            lambda: session.send(c.Ping("1"), NOW),
            lambda: session.send_chunk(b"", NOW),
            lambda: session.receive(b"", NOW),
        ):
            with self.assertRaises(NotStarted):
                call()
        session.start()
        with self.assertRaises(NotStarted):
            session.start()
        unused = ProtocolSession(SERVER, server_name="s", now=NOW)
        unused.close(CloseReason.LOCAL, "never mind")
        self.assertEqual(unused.data_to_send(), b"")

    def test_refuses_a_client_without_a_dialect(self) -> None:
        with self.assertRaises(NoDialect):
            ProtocolSession(CLIENT, server_name=None, now=NOW)
        with self.assertRaises(BadLineLimit):
            ProtocolSession(SERVER, server_name="s", now=NOW, limits=SessionLimits(peer_line=1))
        redis = ProtocolSession(CLIENT, server_name=None, dialect=CURRENT, now=NOW)
        with self.assertRaises(NotOursToSend):
            redis.start()

    def test_what_is_sent_while_closing_is_dropped(self) -> None:
        session = started(SERVER)
        session.close(CloseReason.LOCAL)
        self.assertFalse(session.send(c.RemoteServerUp("x"), NOW))
        self.assertFalse(session.send_chunk(b"PING 1\n", NOW))
        self.assertEqual(session.data_to_send(), b"")

    def test_closes_a_session_whose_peer_does_not_read(self) -> None:
        session = started(SERVER, queued_lines=3)
        line = b"RDATA a m 1 []\n"
        session.send_chunk(line * 5, NOW)  # one burst is no sign of a slow reader
        session.data_to_send()
        for _ in range(3):
            self.assertTrue(session.send_chunk(line, NOW))
        self.assertFalse(session.send_chunk(line, NOW))
        self.assertIs(session.closed_reason, CloseReason.FAILED_TO_KEEP_UP)
        self.assertIsInstance(session.fault, FailedToKeepUp)
        self.assertEqual(session.data_to_send(), line * 3 + b"ERROR Failed to keep up\n")

    def test_an_error_is_one_short_line_whatever_it_quotes(self) -> None:
        session = started(SERVER, peer_line=256)
        session.close(CloseReason.LOCAL, "a\nb\r\n \ud800é\x85 " + "z" * 1000)
        data = session.data_to_send()
        self.assertTrue(data.startswith(b"ERROR a b \\ud800\\xe9\\x85 zzz"))
        self.assertEqual((len(data), data.count(b"\n")), (257, 1))


class TimeOuts(TestCase):
    """Pings and time-outs."""

    def test_only_a_peer_that_pings_is_timed_out(self) -> None:
        session = started(SERVER)
        session.receive(b"NAME x\n", NOW)
        for second in range(5, 200, 5):
            session.tick(NOW + second)
        self.assertFalse(session.closing)
        session.receive(b"PING 1\n", NOW + 200)
        session.data_to_send()
        session.tick(NOW + 214.9)
        self.assertFalse(session.closing)
        session.tick(NOW + 215)
        self.assertIs(session.closed_reason, CloseReason.PING_TIMEOUT)
        self.assertIsInstance(session.fault, PingTimeout)
        self.assertTrue(session.data_to_send().endswith(b"\nERROR ping timeout\n"))

    def test_a_peer_that_never_sends_a_line_times_out(self) -> None:
        for side in (SERVER, CLIENT):
            session = started(side)
            session.receive(b"REPLICA", NOW + 30)
            session.tick(NOW + 59.9)
            self.assertFalse(session.closing)
            session.tick(NOW + 60)
            self.assertIs(session.closed_reason, CloseReason.NEVER_SPOKE)
            self.assertIn(b"ERROR nothing was said for 60 s", session.data_to_send())

    def test_a_person_who_has_pressed_a_key_may_take_a_break(self) -> None:
        session = started(SERVER)
        session.receive(b"\n", NOW + 59)
        for second in range(60, 6000, 5):
            session.tick(NOW + second)
        self.assertFalse(session.closing)

    def test_a_paused_peer_does_not_count_as_silent(self) -> None:
        session = started(SERVER)
        session.receive(b"PING 1\n", NOW)
        for second in range(5, 100, 5):
            session.not_reading(NOW + second)
            session.tick(NOW + second)
        self.assertFalse(session.closing)

    def test_any_valid_command_keeps_it_alive_and_nothing_else_does(self) -> None:
        session = started(SERVER)
        session.receive(b"PING 1\n", NOW)
        session.receive(b"NAME x\n", NOW + 14)
        session.tick(NOW + 28)
        self.assertFalse(session.closing)
        session.receive(b"\n\r\nPIN", NOW + 28)
        session.tick(NOW + 29)
        self.assertTrue(session.closing)

    def test_rdata_counts_as_sent(self) -> None:
        session = started(SERVER)
        session.send_chunk(b"RDATA a m 1 []\n", NOW + 4)
        session.data_to_send()
        self.assertEqual(session.next_tick, NOW + 9)
        session.tick(NOW + 5)
        self.assertEqual(session.data_to_send(), b"")
        session.tick(NOW + 9)
        self.assertEqual(session.data_to_send(), b"PING 1009000\n")

    def test_heartbeat_when_the_clock_is_set_back(self) -> None:
        heart = Heartbeat(NOW)
        heart.arm()
        self.assertIs(heart.check(NOW - 500), HeartbeatAction.NOTHING)
        self.assertEqual(heart.due, NOW - 495)
        self.assertIs(heart.check(NOW - 495), HeartbeatAction.PING)
        self.assertIs(heart.check(NOW - 485), HeartbeatAction.GIVE_UP)

    @given(st.floats(0, 4e9), st.integers(0, 3))
    def test_a_tick_at_the_time_asked_for_does_something(self, now: float, pings: int) -> None:
        heart = Heartbeat(now)
        for _ in range(pings):
            self.assertIs(heart.check(heart.due), HeartbeatAction.PING)
            heart.sent(heart.due)


_PIECES = st.sampled_from([
    b"PING", b"RDATA", b"POSITION", b"REPLICATE", b"USER_SYNC", b"NAME", b"SERVER", b"ERROR",
    b"USER_IP", b"FEDERATION_ACK", b"INVALIDATE_CACHE", b"LOCK_RELEASED", b"CLEAR_USER_SYNC",
    b" ", b" ", b" ", b"\n", b"\n", b"\r\n", b"events", b"s", b"m", b"batch", b"1", b"-1", b"NOW",
    b"[1]", b'["a","b","c"]', b"start", b"\xff", b"\xc3\xa9", b"\0", b"\t", b"x" * 300,
])  # fmt: skip
_JUNK = st.lists(_PIECES | st.binary(max_size=5), max_size=40).map(b"".join)
_VALID = st.lists(
    st.sampled_from([
        b"PING 1\n", b"NAME x\r\n", b"\n", b"REPLICATE\n", b"REPLICATE events 5\n",
        b"USER_SYNC @a:b start 1\n", b"USER_SYNC i @a:b end 1\n", b"FEDERATION_ACK 4\n",
        b"REMOTE_SERVER_UP x\n", b"NAME " + b"x" * 251 + b"\n", b"NAME " + b"x" * 252 + b"\n",
    ]), max_size=12,
).map(b"".join)  # fmt: skip


class Properties(TestCase):
    @settings(max_examples=300)
    @given(_JUNK, st.sampled_from(list(Side)), st.sampled_from([None, *DIALECTS.values()]))
    def test_no_input_raises_an_exception(
        self, data: bytes, side: Side, dialect: Dialect | None
    ) -> None:
        if dialect is CURRENT or (dialect is None and side is CLIENT):
            dialect = MODERN
        session = started(side, dialect, line=256)
        for command in session.receive(data, NOW):
            self.assertIsInstance(command, c.Command)
        answer = session.data_to_send()
        self.assertEqual(session.closing, answer != b"")
        if session.closing:
            self.assertTrue(answer.startswith(b"ERROR ") and answer.endswith(b"\n"))
            self.assertEqual(answer.count(b"\n"), 1)
            self.assertIsNotNone(session.fault)

    @settings(max_examples=200)
    @given(st.one_of(_VALID, _JUNK, st.tuples(_VALID, _JUNK).map(b"".join)), st.data())
    def test_the_result_does_not_depend_on_how_bytes_are_cut(
        self, stream: bytes, data: st.DataObject
    ) -> None:
        whole = started(SERVER, None, line=256)
        expected = whole.receive(stream, NOW)
        pieces = started(SERVER, None, line=256)
        commands: list[c.Command] = []
        rest = stream
        while rest:
            size = data.draw(st.integers(1, min(len(rest), 64)))
            commands += pieces.receive(rest[:size], NOW)
            rest = rest[size:]
        self.assertEqual(commands, expected)
        self.assertEqual(pieces.data_to_send(), whole.data_to_send())
        self.assertEqual(pieces.closed_reason, whole.closed_reason)
        self.assertEqual(pieces.dialect, whole.dialect)
        self.assertEqual(pieces.connection_lost(), whole.connection_lost())
