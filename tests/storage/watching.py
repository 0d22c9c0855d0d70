"""A process that writes and announces, and what it was heard to announce."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import TestCase

from synrepl.core.tokens import Range, Token
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.announcing.stream_state import StreamState
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.streams.definition import Fact, Stream
from tests.storage.postgres import Process
from tests.storage.samples import NOTES


class Heard:
    """Everything that was announced; whatever breaks the rules of announcing fails the test."""

    def __init__(self, case: TestCase) -> None:
        self._case = case
        self.positions: dict[str, Token] = {}
        self.linear: Token = 0
        self.facts: list[Fact] = []
        self.linear_facts: list[Fact] = []
        self.unseen: list[Range] = []
        self.jumps: list[Range] = []

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """Of Movements."""
        if prev == new and prev != self.positions.get(writer):  # moved on by a failover
            self._case.assertGreater(new, self.positions.get(writer, -1))
            self.jumps.append(Range(self.positions.get(writer, 0), new))
            self.positions[writer] = new
            return
        self._case.assertLessEqual(prev, new)
        self._case.assertEqual(self.positions.setdefault(writer, prev), prev)
        tokens = [fact.token for fact in facts]
        self._case.assertEqual(tokens, sorted(set(tokens)))
        self._case.assertTrue(all(prev < token <= new for token in tokens), (prev, new, tokens))
        self._case.assertEqual({fact.writer for fact in facts} | {writer}, {writer})
        self.positions[writer] = new
        self.facts += facts

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """Of Movements."""
        self._case.assertTrue(self.linear <= prev < new)
        self.linear = new
        if facts is None:  # as at the start: whoever wants them reads the table
            self.unseen.append(Range(prev, new))
            return
        self._case.assertTrue(all(prev < fact.token <= new for fact in facts))
        self.linear_facts += facts

    def missed(self, fact: Fact) -> bool:
        """True for a fact that linear followers were sent to the table for."""
        return any(fact.token in span for span in self.unseen)


class Silent:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        self.lines.append(format.format(**facts))

    warn = info


class Announcing:
    """One process that writes :data:`NOTES` and announces them."""

    def __init__(self, case: TestCase, process: Process, writer: str, poll_s: float = 1.0) -> None:
        self.log = Silent()
        self.heard = Heard(case)
        self.announcer = Announcer(
            process.scheduler,
            process.store,
            [NOTES],
            self.heard,
            self.log,
            poll_s,
            failed_over=lambda incarnation: self.writer.failed_over(incarnation),
        )
        self.writer = StreamWriter(
            process.scheduler, process.store, writer, [NOTES], self.announcer, self.log
        )

    async def start(self) -> None:
        """As a master does."""
        await self.writer.start()
        await self.announcer.start()

    async def stop(self) -> None:
        """As a master does."""
        await self.announcer.stop()
        await self.writer.stop()

    @property
    def state(self) -> StreamState:
        """Where the stream stands."""
        return self.announcer.states[NOTES.name]

    def sees(self, writer: str) -> bool:
        """True when the last look found that ``writer`` may hold unsettled tokens."""
        seen = self.state.observation
        return seen is not None and writer in seen.writers and bool(seen.writers[writer].holders)
