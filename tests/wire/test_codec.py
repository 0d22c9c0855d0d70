from __future__ import annotations

import inspect
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.wire import commands as c
from synrepl.wire.codec import (
    NotInDialect,
    NotUtf8,
    UnknownCommand,
    WrongArguments,
    WrongSide,
    is_blank,
    parse_line,
    rdata_prefix,
    write_line,
)
from synrepl.wire.dialects import (
    CURRENT,
    DIALECTS,
    LEGACY,
    MODERN,
    TRANSITIONAL,
    CommandLayout,
    Dialect,
    Side,
    opening,
)
from synrepl.wire.errors import RemoteProtocolError
from synrepl.wire.fields import (
    BadCells,
    BadNumber,
    BadState,
    BadWord,
    EmptyRow,
    Unwritable,
)
from tests.wire.strategies import commands, layouts

SERVER, CLIENT = Side.SERVER, Side.CLIENT
MAX = 2**63 - 1


class RoundTrips(TestCase):
    """What is written is read back equal."""

    def test_every_command_survives_every_dialect(self) -> None:
        for dialect, layout in layouts():
            with self.subTest(dialect=dialect.name, usage=layout.usage):
                self.check_round_trip(dialect, layout)

    def check_round_trip(self, dialect: Dialect, layout: CommandLayout) -> None:
        @settings(max_examples=25, database=None)
        @given(commands(layout))
        def check(command: c.Command) -> None:
            line = write_line(command, dialect)
            self.assertNotIn(b"\n", line)
            for sender in layout.senders:
                self.assertEqual(parse_line(line, dialect, sender), command)
                self.assertEqual(parse_line(line + b"\r", dialect, sender), command)

        check()

    def test_every_command_class_is_in_the_table_and_documented(self) -> None:
        listed = {layout.command for _, layout in layouts()}
        declared = {
            x
            for x in vars(c).values()
            if inspect.isclass(x) and issubclass(x, c.Command) and x is not c.Command
        }
        self.assertEqual(listed, declared)
        self.assertEqual(len({command.verb for command in listed}), 18)
        for command in declared:
            text = inspect.getdoc(command) or ""
            self.assertIn("Format: ``" + command.verb, text)
            self.assertIn("Example", text)

    @settings(max_examples=200)
    @given(st.lists(st.sampled_from(
        [b"RDATA", b"events", b"w1", b"batch", b"7", b"", b"-1", b"+1", b"1_0", b"x" * 300,
         b"9223372036854775807", b"9223372036854775808", b"[1]", b"\xc3\xa9", b"\xff", b"\t", b"\r"]
    ), max_size=7))  # fmt: skip
    def test_the_fast_path_agrees_with_the_table(self, pieces: list[bytes]) -> None:
        # A CR at the end sends the line through the table.
        line = b" ".join([b"RDATA", *pieces])
        for dialect in DIALECTS.values():
            self.assertEqual(_outcome(line, dialect), _outcome(line + b"\r", dialect))


def _outcome(line: bytes, dialect: Dialect) -> object:
    while line.endswith(b"\r\r"):
        line = line[:-1]
    try:
        return parse_line(line, dialect, SERVER)
    except RemoteProtocolError as error:
        return type(error)


class Reading(TestCase):
    """Valid lines, by dialect."""

    def read(self, line: bytes, dialect: Dialect, sender: Side) -> c.Command:
        return parse_line(line, dialect, sender)

    def test_parses_lines_into_commands(self) -> None:
        row = b'["ev", ["$e", null]]'
        examples: list[tuple[bytes, Dialect, Side, c.Command]] = [
            (b"RDATA events 5 " + row, LEGACY, SERVER, c.Rdata("events", None, 5, row)),
            (b"RDATA events w1 batch " + row, MODERN, SERVER, c.Rdata("events", "w1", None, row)),
            (b"RDATA events w1 %d 1" % MAX, MODERN, SERVER, c.Rdata("events", "w1", MAX, b"1")),
            (b"POSITION events 5", LEGACY, SERVER, c.Position("events", None, None, 5)),
            (b"POSITION events w1 5", TRANSITIONAL, SERVER, c.Position("events", "w1", None, 5)),
            (b"POSITION events w1 4 5", MODERN, SERVER, c.Position("events", "w1", 4, 5)),
            (b"REPLICATE", MODERN, CLIENT, c.Replicate()),
            (b"REPLICATE ", CURRENT, CLIENT, c.Replicate()),
            (b"REPLICATE\r", MODERN, CLIENT, c.Replicate()),
            (b"REPLICATE events 53", LEGACY, CLIENT, c.Replicate("events", 53)),
            (b"REPLICATE ALL NOW", LEGACY, CLIENT, c.Replicate("ALL", None)),
            (b"REPLICATE ALL now\r", LEGACY, CLIENT, c.Replicate("ALL", None)),
            (b"REPLICATE ALL 5", LEGACY, CLIENT, c.Replicate("ALL", 5)),
            (b"REPLICATE federation -1", LEGACY, CLIENT, c.Replicate("federation", -1)),
            (b"FEDERATION_ACK 3", TRANSITIONAL, CLIENT, c.FederationAck(None, 3)),
            (b"FEDERATION_ACK f1 3", TRANSITIONAL, CLIENT, c.FederationAck("f1", 3)),
            (b"USER_SYNC @a:b end 7", LEGACY, CLIENT, c.UserSync(None, "@a:b", None, False, 7)),
            (b"USER_SYNC i @a:b None start 7", CURRENT, CLIENT,
             c.UserSync("i", "@a:b", None, True, 7)),
            (b"USER_SYNC i @a:b DEV start 7", CURRENT, CLIENT,
             c.UserSync("i", "@a:b", "DEV", True, 7)),
            (b'USER_IP @a:b ["t", "ip", "ua", null, 9]', MODERN, CLIENT,
             c.UserIp("@a:b", "t", "ip", "ua", None, 9)),
            (b'LOCK_RELEASED ["w","l","k k"]', CURRENT, SERVER, c.LockReleased("w", "l", "k k")),
            (b"PING", MODERN, CLIENT, c.Ping("")),
            (b"NAME ", MODERN, CLIENT, c.Name("")),
            (b"ERROR", LEGACY, CLIENT, c.Error("")),
            (b"PING hello world", LEGACY, CLIENT, c.Ping("hello world")),
            (b"PING a\rb\0", LEGACY, CLIENT, c.Ping("a\rb\0")),
            ("PING ünï\u2028x".encode(), LEGACY, CLIENT, c.Ping("ünï\u2028x")),
            ("RDATA événements w1 5 [\"é\"]".encode(), MODERN, SERVER,
             c.Rdata("événements", "w1", 5, '["é"]'.encode())),
        ]  # fmt: skip
        for line, dialect, sender, command in examples:
            with self.subTest(line=line, dialect=dialect.name):
                self.assertEqual(parse_line(line, dialect, sender), command)

    def test_names_are_shared(self) -> None:
        first = parse_line(b"RDATA events w1 1 []", MODERN, SERVER)
        second = parse_line(b"RDATA events w1 2 []", MODERN, SERVER)
        assert isinstance(first, c.Rdata)
        assert isinstance(second, c.Rdata)
        self.assertIs(first.stream, second.stream)
        self.assertIs(first.writer, second.writer)

    def test_redis_accepts_commands_of_both_sides(self) -> None:
        for sender in Side:
            parse_line(b"RDATA events w1 1 []", CURRENT, sender)
            parse_line(b"REPLICATE ", CURRENT, sender)

    def test_parses_redis_lines_of_the_first_releases(self) -> None:
        """They neither sent the previous token nor named devices."""
        for line, command in (
            (b"POSITION events w1 7", c.Position("events", "w1", None, 7)),
            (b"USER_SYNC w1 @u:x start 5", c.UserSync("w1", "@u:x", None, True, 5)),
        ):
            self.assertEqual(parse_line(line, CURRENT, Side.CLIENT), command)

    def test_recognises_blank_lines(self) -> None:
        self.assertTrue(is_blank(b"") and is_blank(b"\r"))
        self.assertFalse(is_blank(b" ") or is_blank(b"\r\r"))

    def test_an_undecided_server_accepts_both_dialects(self) -> None:
        either = opening(MODERN)
        for line in (
            b"USER_SYNC @a:b start 1",
            b"USER_SYNC i @a:b start 1",
            b"FEDERATION_ACK 1",
            b"FEDERATION_ACK i 1",
            b"REPLICATE",
            b"REPLICATE events NOW",
            b"CLEAR_USER_SYNC i",
            b'INVALIDATE_CACHE f ["k"]',
        ):
            parse_line(line, either, CLIENT)


class Refusals(TestCase):
    """Refused lines, and their errors."""

    def test_refuses_bad_lines(self) -> None:
        examples: list[tuple[bytes, Dialect, Side, type[RemoteProtocolError]]] = [
            (b"FOO bar", MODERN, CLIENT, UnknownCommand),
            (b"ping 1", MODERN, CLIENT, UnknownCommand),
            (b"   ", MODERN, CLIENT, UnknownCommand),
            (b" PING 1", MODERN, CLIENT, UnknownCommand),
            (b"PING\t1", MODERN, CLIENT, UnknownCommand),
            (b"SYNC 1", MODERN, SERVER, UnknownCommand),
            (b"PING 1", CURRENT, SERVER, UnknownCommand),
            (b"CLEAR_USER_SYNC i", LEGACY, CLIENT, UnknownCommand),
            (b'LOCK_RELEASED ["a","b","c"]', MODERN, SERVER, UnknownCommand),
            (b"RDATA events w1 1 []", MODERN, CLIENT, WrongSide),
            (b"REPLICATE", MODERN, SERVER, WrongSide),
            (b"REPLICATE", LEGACY, CLIENT, WrongArguments),
            (b"REPLICATE events", LEGACY, CLIENT, WrongArguments),
            (b"REPLICATE events 1 2", LEGACY, CLIENT, WrongArguments),
            (b"REPLICATE events NOW ", LEGACY, CLIENT, WrongArguments),
            (b"REPLICATE events NOW", MODERN, CLIENT, WrongArguments),
            (b"REPLICATE  ", MODERN, CLIENT, WrongArguments),
            (b"SERVER", MODERN, SERVER, BadWord),
            (b"SERVER a b", MODERN, SERVER, WrongArguments),
            (b"POSITION events w1 5", MODERN, SERVER, WrongArguments),
            (b"RDATA events w1 5", MODERN, SERVER, WrongArguments),
            (b"RDATA events w1 5 ", MODERN, SERVER, EmptyRow),
            (b"RDATA events w1 5  ", MODERN, SERVER, EmptyRow),
            (b"RDATA  w1 5 []", MODERN, SERVER, BadWord),
            (b"RDATA e\tv w1 5 []", MODERN, SERVER, BadWord),
            (b"RDATA %s w1 5 []" % (b"e" * 256), MODERN, SERVER, BadWord),
            (b"RDATA events w1 -5 []", MODERN, SERVER, BadNumber),
            (b"RDATA events w1 x []", MODERN, SERVER, BadNumber),
            (b"RDATA events w1 BATCH []", MODERN, SERVER, BadNumber),
            (b"RDATA events w1 %d []" % (MAX + 1), MODERN, SERVER, BadNumber),
            (b"RDATA events w1 %s []" % (b"1" * 5000), MODERN, SERVER, BadNumber),
            ("RDATA events w1 \u0661 []".encode(), MODERN, SERVER, BadNumber),
            (b"POSITION events w1 -1 5", MODERN, SERVER, BadNumber),
            (b"POSITION events w1 5 5 ", MODERN, SERVER, WrongArguments),
            (b"REPLICATE events 1_0", LEGACY, CLIENT, BadNumber),
            (b"REPLICATE events +4", LEGACY, CLIENT, BadNumber),
            (b"REPLICATE events --4", LEGACY, CLIENT, BadNumber),
            (b"REPLICATE events %d" % (-MAX - 2), LEGACY, CLIENT, BadNumber),
            (b"REPLICATE events Now", LEGACY, CLIENT, BadNumber),
            (b"USER_SYNC i @a:b maybe 1", MODERN, CLIENT, BadState),
            (b"USER_SYNC i @a:b start -1", MODERN, CLIENT, BadNumber),
            (b"USER_SYNC @a:b", MODERN, CLIENT, WrongArguments),
            (b"USER_IP @a:b notjson", MODERN, CLIENT, BadCells),
            (b'USER_IP @a:b ["t","ip"]', MODERN, CLIENT, BadCells),
            (b'USER_IP @a:b ["t","ip","ua","d",1,2]', MODERN, CLIENT, BadCells),
            (b'USER_IP @a:b ["t","ip","ua","d","1"]', MODERN, CLIENT, BadCells),
            (b'USER_IP @a:b ["\\ud800","ip","ua","d",1]', MODERN, CLIENT, BadCells),
            (b"USER_IP @a:b", MODERN, CLIENT, WrongArguments),
            (b"INVALIDATE_CACHE f [", LEGACY, CLIENT, BadCells),
            (b"INVALIDATE_CACHE f " + b"[" * 16000, LEGACY, CLIENT, BadCells),
            (b"INVALIDATE_CACHE f [%s]" % (b"9" * 16000), LEGACY, CLIENT, BadCells),
            (b"INVALIDATE_CACHE f null", LEGACY, CLIENT, BadCells),
            (b'LOCK_RELEASED ["a","b"]', CURRENT, SERVER, BadCells),
            (b"NAME \xff\xfe", MODERN, CLIENT, NotUtf8),
            (b"\xff\xfe", MODERN, CLIENT, NotUtf8),
            (b"PING \xed\xa0\x80", MODERN, CLIENT, NotUtf8),
            (b'RDATA events w1 5 ["\xff"]', MODERN, SERVER, NotUtf8),
        ]
        for line, dialect, sender, refusal in examples:
            with self.subTest(line=line[:60], dialect=dialect.name):
                with self.assertRaises(refusal) as caught:
                    parse_line(line, dialect, sender)
                text = str(caught.exception)
                self.assertNotIn("{", text)
                self.assertLess(len(text), 400)

    def test_an_access_token_is_not_repeated(self) -> None:
        with self.assertRaises(BadCells) as caught:
            parse_line(b'USER_IP @a:b ["syt_secret", "ip"]', MODERN, CLIENT)
        self.assertNotIn("secret", str(caught.exception))


class Writing(TestCase):
    """Lines that differ between dialects, and values that cannot be written."""

    def test_writes_one_command_in_all_dialects(self) -> None:
        position = c.Position("events", "w1", 4, 5)
        self.assertEqual(
            [write_line(position, dialect) for dialect in DIALECTS.values()],
            [
                b"POSITION events 5",
                b"POSITION events w1 5",
                b"POSITION events w1 4 5",
                b"POSITION events w1 4 5",
            ],
        )

    def test_an_acknowledgement_names_its_instance_where_there_is_one(self) -> None:
        self.assertEqual(write_line(c.FederationAck("f1", 3), TRANSITIONAL), b"FEDERATION_ACK f1 3")
        self.assertEqual(write_line(c.FederationAck(None, 3), TRANSITIONAL), b"FEDERATION_ACK 3")
        self.assertEqual(write_line(c.FederationAck("f1", 3), LEGACY), b"FEDERATION_ACK 3")

    def test_a_bare_command_ends_in_a_space(self) -> None:
        self.assertEqual(write_line(c.Replicate(), MODERN), b"REPLICATE ")

    def test_the_prefix_is_what_the_line_begins_with(self) -> None:
        self.assertEqual(rdata_prefix("events", "w1", MODERN), b"RDATA events w1 ")
        self.assertEqual(rdata_prefix("events", "w1", LEGACY), b"RDATA events ")
        self.assertEqual(rdata_prefix("events", None, LEGACY), b"RDATA events ")
        with self.assertRaises(Unwritable):
            rdata_prefix("events", None, MODERN)
        with self.assertRaises(Unwritable):
            rdata_prefix("my events", "w1", MODERN)

    def test_refuses_values_that_cannot_be_written(self) -> None:
        examples: list[tuple[c.Command, Dialect]] = [
            (c.Rdata("events", None, 1, b"[]"), MODERN),
            (c.Rdata("e v", "w1", 1, b"[]"), MODERN),
            (c.Rdata("events\n", "w1", 1, b"[]"), MODERN),
            (c.Rdata("e" * 256, "w1", 1, b"[]"), MODERN),
            (c.Rdata("", "w1", 1, b"[]"), MODERN),
            (c.Rdata("events", "w1", -1, b"[]"), MODERN),
            (c.Rdata("events", "w1", True, b"[]"), MODERN),
            (c.Rdata("events", "w1", MAX + 1, b"[]"), MODERN),
            (c.Rdata("events", "w1", 1, b""), MODERN),
            (c.Rdata("events", "w1", 1, b"[\n]"), MODERN),
            (c.Rdata("events", "w1", 1, b"[]\r"), MODERN),
            (c.Rdata("events", "w1", 1, b"\xff"), MODERN),
            (c.Position("events", "w1", None, 5), MODERN),
            (c.Name("a\nb"), MODERN),
            (c.Error("a\r"), MODERN),
            (c.Name("\ud800"), MODERN),
            (c.UserSync(None, "@a:b", None, True, 1), MODERN),
            (c.UserSync("i", "@a:b", "None", True, 1), CURRENT),
            (c.UserSync("i", "@a:b", None, "start", 1), CURRENT),  # type: ignore[arg-type]
            (c.UserIp("@a:b", "t", "ip", "\ud800", None, 1), MODERN),
            (c.UserIp("@a:b", "t", "ip", "ua", None, -1), MODERN),
            (c.InvalidateCache("f", (float("nan"),)), LEGACY),
            (c.LockReleased("a", "b", 3), CURRENT),  # type: ignore[arg-type]
        ]
        for command, dialect in examples:
            with self.subTest(command=command), self.assertRaises(Unwritable):
                write_line(command, dialect)

    def test_refuses_commands_that_the_dialect_lacks(self) -> None:
        with self.assertRaises(NotInDialect):
            write_line(c.ClearUserSync("i"), LEGACY)
        with self.assertRaises(NotInDialect):
            write_line(c.Ping("1"), CURRENT)
