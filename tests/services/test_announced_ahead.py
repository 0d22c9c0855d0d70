"""A real server announces a position before it sends the rows below it: no row is lost."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.worker import UpstreamPeer, WorkerFactory
from synrepl.core.tokens import Range, Token
from synrepl.daemon.sources import RoutedSource, UnreachableSource
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.following.lane import AHEAD_S
from synrepl.services.handlers import Batch, Handler
from synrepl.storage.store import Page
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Fact, Generation, Stream
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.wire.codec import parse_line
from synrepl.wire.commands import Rdata
from synrepl.wire.dialects import LEGACY, MODERN, TRANSITIONAL_OR_MODERN, Dialect, Side
from tests.services.test_serve import ConnectionLostReason, Transport
from tests.services.world import RecordingLog, manual_clock
from tests.wire.recordings import DIALECT_OF, genuine_lines

CATALOGUE = Catalogue(SYNAPSE_STREAMS)
CODECS = {stream.name: RowCodec(stream) for stream in CATALOGUE}

GENERATION = {
    "1.11.1": Generation.LEGACY,
    "1.20.1": Generation.TRANSITIONAL,
    "1.43.0": Generation.MODERN,
}

Rows = dict[str, list[tuple[Token, Any]]]


class RecordedTables:
    """A fake source of facts: the recorded rows of a server."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """All facts of the range, as one page."""
        decode = CODECS[stream.name].decode
        facts: dict[Token, list[Any]] = defaultdict(list)
        for token, row in self._rows.get(stream.name, []):
            if token in span:
                facts[token].append(decode(json.dumps(row).encode()))
        found = [Fact(token, writer or "", tuple(rows)) for token, rows in sorted(facts.items())]
        return Page(tuple(found), span.upto, is_limited=False)


class RecordingHandler(Handler):
    """Records rows, and the streams whose facts are reported as lost."""

    def __init__(self, generation: Generation = Generation.MODERN) -> None:
        self.rows: Rows = defaultdict(list)
        self.resets: list[tuple[str, Token]] = []
        self._generation = generation

    async def on_rows(self, batch: Batch) -> None:
        encode = CODECS[batch.stream].encoder(self._generation)
        for fact in batch.facts:
            for row in fact.rows:
                self.rows[batch.stream].append((fact.token, json.loads(encode(row))))

    async def on_reset(self, stream: str, writer: str, position: Token) -> None:
        self.resets.append((stream, position))


class ForeignFollowerCase(SynchronousTestCase):
    def follow(
        self, handler: RecordingHandler, rows: Rows, dialect: Dialect, earliest: bool = True
    ) -> None:
        """Follow a real server whose database is available, and whose HTTP listener is not."""
        self.clock = manual_clock()
        scheduler, self.log = TwistedScheduler(self.clock), RecordingLog()
        self.follower = Follower(
            scheduler,
            CATALOGUE,
            RoutedSource(RecordedTables(rows), UnreachableSource()),
            Delivery(scheduler, [Subscription(handler)], self.log),
            self.log,
            earliest=earliest,
            foreign=True,
        )
        self.factory = WorkerFactory(scheduler, self.follower, "test", None, dialect, self.log.info)
        self.addCleanup(scheduler.stop)
        self.connect()

    def connect(self) -> None:
        self.peer: UpstreamPeer = self.factory.buildProtocol(None)
        self.peer.makeConnection(Transport())  # type: ignore[arg-type]

    def lose(self) -> None:
        self.peer.connectionLost(ConnectionLostReason)

    def receive(self, *lines: str) -> None:
        self.peer.dataReceived("".join(f"{line}\n" for line in lines).encode())
        self.clock.advance(0)


def recorded(version: str) -> Rows:
    """Token and row of every RDATA; the rows of a batch share its token."""
    found: Rows = defaultdict(list)
    half: dict[str, list[Any]] = defaultdict(list)
    for side, line in genuine_lines(version, "live-asked"):
        command = parse_line(line, DIALECT_OF[version], side)
        if isinstance(command, Rdata):
            rows = half[command.stream]
            rows.append(json.loads(command.row))
            if command.token is not None:
                found[command.stream] += [(command.token, row) for row in rows]
                rows.clear()
    return found


class FollowingRecordedServers(ForeignFollowerCase):
    """Recordings of real servers whose clients subscribe repeatedly while rows are written."""

    def test_delivers_every_row_and_no_ordered_row_twice(self) -> None:
        for version, dialect in (
            ("1.20.1", TRANSITIONAL_OR_MODERN),
            ("1.43.0", TRANSITIONAL_OR_MODERN),
            ("1.11.1", LEGACY),
        ):
            with self.subTest(version):
                sent = recorded(version)
                handler = RecordingHandler(GENERATION[version])
                self.follow(handler, sent, dialect)
                for side, line in genuine_lines(version, "live-asked"):
                    if side is Side.SERVER:
                        self.peer.dataReceived(line + b"\n")
                        self.clock.advance(0.2)
                self.clock.advance(AHEAD_S)
                self.lose()
                for stream, rows in sent.items():
                    if CATALOGUE[stream].unordered:
                        missing = counted(rows) - counted(handler.rows[stream])
                        self.assertEqual(missing, Counter(), stream)
                    else:
                        self.assertEqual(handler.rows[stream], rows, stream)
                self.assertEqual(handler.resets, [])
                warned = [text for level, text in self.log.lines if level == "warn"]
                self.assertEqual(warned, [])


class FollowingAnInMemoryStream(ForeignFollowerCase):
    """The stream ``typing`` of a server whose HTTP listener is unreachable."""

    def typing(self, token: int) -> tuple[str, tuple[int, Any]]:
        row = [f"!r{token}:x", []]
        return f"RDATA typing master {token} {json.dumps(row)}", (token, row)

    def following(self) -> RecordingHandler:
        handler = RecordingHandler()
        self.follow(handler, {}, MODERN)
        self.receive("POSITION typing master 8 8", self.typing(9)[0])
        self.clock.pump([0.1] * 40)
        self.assertEqual([token for token, _ in handler.rows["typing"]], [9])
        return handler

    def test_delivers_rows_that_come_after_the_position(self) -> None:
        handler = self.following()
        self.receive("POSITION typing master 12 12")
        self.clock.pump([0.1] * 5)
        lines, rows = zip(*map(self.typing, (10, 12, 13)), strict=True)
        self.receive(lines[0], "POSITION typing master 12 12", *lines[1:])
        self.clock.pump([0.1] * 5)
        self.assertEqual(handler.rows["typing"][1:], list(rows))
        self.assertEqual(handler.resets, [])

    def test_does_not_report_a_token_without_rows_as_lost(self) -> None:
        handler = self.following()
        self.receive("POSITION typing master 12 12")
        self.clock.pump([0.1] * 40)
        self.assertEqual(handler.resets, [])
        self.assertEqual(self.follower.positions["typing", "master"], 12)
        line, row = self.typing(13)
        self.receive(line)
        self.assertEqual(handler.rows["typing"][1:], [row])

    def test_reports_rows_missed_between_connections_as_lost(self) -> None:
        handler = self.following()
        self.lose()
        self.connect()
        line, row = self.typing(19)
        self.receive("POSITION typing master 20 20", line)
        self.clock.pump([0.1] * 5)
        self.assertEqual(handler.resets, [("typing", 18)])  # a connection may lose its last lines
        self.assertEqual(handler.rows["typing"][1:], [row])


def counted(rows: list[tuple[Token, Any]]) -> Counter[str]:
    return Counter(json.dumps(each) for each in rows)
