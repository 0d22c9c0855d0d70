"""A master's mirror of in-memory streams, on a bus that loses messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest import TestCase

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from synrepl.core.tokens import Range, Token
from synrepl.services.announcing.stream_state import StreamState
from synrepl.services.bus.master_subscriber import MasterBusSubscriber, Mirror, NotHeardYet
from synrepl.services.serving.stream_updates import page_skipping_trimmed
from synrepl.storage.store import Trimmed
from synrepl.streams.declared import declare
from synrepl.streams.definition import Fact, Stream
from synrepl.wire.batching import DEFAULT_MAX_ROWS
from synrepl.wire.commands import Command, Position, Rdata
from tests.services.test_serve import Client, MasterCase
from tests.services.world import FakeUpstream, RecordingLog, done

NOTES = replace(declare("notes", {"text": "text"}), in_memory=True)
MACHINE = settings(max_examples=150, stateful_step_count=30, deadline=None)


def row(text: str) -> bytes:
    return b'["%b"]' % text.encode()


class RecordingListener:
    """A follower of the master: what it knows, and from where on."""

    def __init__(self) -> None:
        self.after = self.position = -1
        self.known: dict[Token, list[str]] = {}
        self.linear = -1

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        assert prev == self.position, "an unannounced gap"
        self.position = new
        for fact in facts:
            self.known[fact.token] = [row.text for row in fact.rows]  # type: ignore[attr-defined]

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        self.linear = new

    def stream_restarted(self, stream: Stream, writer: str, position: Token, known: bool) -> None:
        assert known == (self.position >= 0)
        self.known.clear()
        self.after = self.position = self.linear = position


class MirrorMachine(RuleBasedStateMachine):
    """A writer, and a master that hears it, or does not."""

    @initialize()
    def begin(self) -> None:
        """Both are there."""
        self.follows = RecordingListener()
        self.mirror = Mirror([(NOTES, "w1")], RecordingLog())
        self.state = StreamState(NOTES, self.follows)
        self.mirror.begin({"notes": self.state}, self.follows.stream_restarted)
        self.facts: list[list[str]] = []
        self.count = 0
        self.announced: Token = 0
        self.connected = False
        self.started_unconnected = False
        self.come_back()

    def publish(self, *commands: Command) -> None:
        """Publish commands of the writer, which are received or lost."""
        if self.connected:
            self.mirror.received(commands)

    @rule(rows=st.integers(1, 3), skip=st.booleans())
    def append(self, rows: int, skip: bool) -> None:
        """A fact; perhaps one was rolled back before it."""
        if skip:
            self.facts.append([])
            self.publish(Position("notes", "w1", self.announced, len(self.facts)))
        texts = [f"{self.count}.{n}" for n in range(rows)]
        self.count += 1
        self.facts.append(texts)
        *others, last = [Rdata("notes", "w1", None, row(text)) for text in texts]
        self.publish(*others, replace_token(last, len(self.facts)))
        self.announced = len(self.facts)

    @rule(extra=st.booleans())
    def somebody_asks(self, extra: bool) -> None:
        """All processes receive an answer; other processes' messages are not the writer's."""
        self.publish(Position("notes", "w1", self.announced, self.announced))
        if extra:
            self.publish(Position("notes", "w2", 0, 999), Rdata("other", "w1", 999, row("x")))
            self.publish(Rdata("notes", "w2", 999, row("x")))

    @rule()
    def start_again(self) -> None:
        """The writer's process starts again."""
        self.facts, self.announced = [], 0
        self.started_unconnected = self.started_unconnected or not self.connected
        self.publish(Position("notes", "w1", 0, 0))

    @rule(half=st.booleans())
    def lose(self, half: bool) -> None:
        """The bus is lost, perhaps amid a fact."""
        if half:
            self.publish(Rdata("notes", "w1", None, row("half")))
        self.connected = False
        self.mirror.disconnected()

    def distinguishable(self) -> bool:
        """A writer that started again and has got to just where it was looks as if nothing had been."""
        return not self.started_unconnected or self.announced != self.follows.position

    @precondition(lambda self: not self.connected and self.distinguishable())
    @rule()
    def come_back(self) -> None:
        """The bus is connected again, and the writer announces its position."""
        self.connected, self.started_unconnected = True, False
        self.publish(Position("notes", "w1", self.announced, self.announced))
        self.nothing_is_missing()

    @precondition(lambda self: self.connected)
    @rule()
    def nothing_is_missing(self) -> None:
        """The master serves the writer's facts, all since the last reset of followers."""
        follows, all_of_it = self.follows, dict(enumerate(self.facts, 1))
        assert follows.position == self.announced == self.state.positions["w1"]
        assert follows.linear == self.state.linear == self.announced
        since = {t: texts for t, texts in all_of_it.items() if t > follows.after and texts}
        assert follows.known == since
        span = Range(follows.after, self.announced)
        page = done(self.mirror.page_if_connected(NOTES, span, "w1", 1000))
        assert {fact.token: [r.text for r in fact.rows] for fact in page.facts} == since  # type: ignore[attr-defined]

    @precondition(lambda self: not self.connected)
    @rule()
    def nobody_is_sure(self) -> None:
        """Who may know better is not answered."""
        try:
            done(self.mirror.page_if_connected(NOTES, Range(0, 1), "w1", 10))
        except NotHeardYet:
            return
        raise AssertionError("it was answered")


def replace_token(rdata: Rdata, token: Token) -> Rdata:
    return Rdata(rdata.stream, rdata.writer, token, rdata.row)


class MirroringAnInMemoryStream(TestCase):
    def test_reports_every_loss_as_a_restart(self) -> None:
        run_state_machine_as_test(MirrorMachine, settings=MACHINE)

    def test_skips_invalid_rows(self) -> None:
        log, follows = RecordingLog(), RecordingListener()
        mirror = Mirror([(NOTES, "w1")], log)
        mirror.begin({"notes": StreamState(NOTES, follows)}, follows.stream_restarted)
        mirror.received([Position("notes", "w1", 0, 0)])
        mirror.received([Rdata("notes", "w1", 1, b"[7]"), Rdata("notes", "w1", 2, b"[")])
        mirror.received([Rdata("notes", "w1", 3, row("a"))])
        self.assertEqual({t: texts for t, texts in follows.known.items() if texts}, {3: ["a"]})
        self.assertEqual((follows.position, len(log.lines)), (3, 1))

    def test_a_real_worker_gets_the_facts_that_are_left(self) -> None:
        log, follows = RecordingLog(), RecordingListener()
        mirror = Mirror([(NOTES, "w1")], log)
        mirror.begin({"notes": StreamState(NOTES, follows)}, follows.stream_restarted)
        mirror.received([Position("notes", "w1", 4, 4), Rdata("notes", "w1", 5, row("a"))])
        page = done(page_skipping_trimmed(mirror, NOTES, Range(1, 5), 10, "a real worker", log))
        self.assertEqual([fact.token for fact in page.facts], [5])
        self.assertIn("which is trimmed up to 4; it misses these facts", log.lines[0][1])

    def test_closes_the_connection_on_an_endless_batch(self) -> None:
        closed: list[str] = []

        class Closing(FakeUpstream):
            def close(self, reason: object, text: str | None = None) -> None:
                closed.append(text or "")

        subscriber = MasterBusSubscriber(
            lambda command: None, Mirror([(NOTES, "w1")], RecordingLog())
        )
        subscriber.connected(Closing())
        subscriber.received([Rdata("notes", "w1", None, row("a"))] * (DEFAULT_MAX_ROWS + 1))
        self.assertIn("unfinished batches", closed[0])


class ServingMirroredStreamsToClients(MasterCase):
    """A master's TCP clients of both dialects receive them."""

    def setUp(self) -> None:
        super().setUp()
        self.stream = replace(self.world.catalogue["pushers"], in_memory=True)
        self.mirror = Mirror([(self.stream, "w1")], self.log)
        states = self.world.announcer.states
        self.mirror.begin(states, lambda stream, *_: self.master.stream_restarted(stream))
        self.modern = Client(self, "REPLICATE ")
        self.legacy = Client(self, "REPLICATE pushers 0")
        for client in (self.modern, self.legacy):
            client.received()

    def receive(self, *commands: Command) -> None:
        self.mirror.received(commands)
        self.world.clock.advance(0)

    def rdata(self, token: Token) -> Rdata:
        return Rdata("pushers", "w1", token, b'["@u:x","app","key",false]')

    def about(self, client: Client) -> list[str]:
        return [line for line in client.received() if line.split()[1] == "pushers"]

    def test_clients_get_facts_and_restarts(self) -> None:
        self.receive(Position("pushers", "w1", 4, 4))
        self.assertEqual(self.about(self.modern), ["POSITION pushers w1 4 4"])
        self.assertEqual(self.about(self.legacy), ["POSITION pushers 4"])
        self.receive(self.rdata(5))
        cells = '["@u:x","app","key",false]'
        self.assertEqual(self.about(self.modern), [f"RDATA pushers w1 5 {cells}"])
        self.assertEqual(self.about(self.legacy), [f"RDATA pushers 5 {cells}"])
        # It has started again: lower, and what was missed of it is gone.
        self.receive(Position("pushers", "w1", 1, 1), self.rdata(2))
        self.assertEqual(
            self.about(self.modern), ["POSITION pushers w1 1 1", f"RDATA pushers w1 2 {cells}"]
        )
        self.assertEqual(
            self.about(self.legacy), ["POSITION pushers 1", f"RDATA pushers 2 {cells}"]
        )
        with self.assertRaises(Trimmed):
            done(self.mirror.page(self.stream, Range(0, 2), "w1", 10))
        # A new client gets the same answer.
        late = Client(self, "REPLICATE ")
        self.assertIn("POSITION pushers w1 2 2", self.about(late))
