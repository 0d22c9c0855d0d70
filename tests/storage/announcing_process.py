"""A process that writes and announces, and a listener that records the announcements."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import TestCase

from synrepl.adapters.caches import make_caches
from synrepl.core.tokens import Range, Token
from synrepl.services.announcing.stream_state import StreamState
from synrepl.services.coherence.coherence import Coherence
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Fact, Stream
from tests.storage.postgres import Process
from tests.storage.samples import NOTES
from tests.support.masters import build_master


class RecordingListener:
    """Records all announcements, and fails the test if one breaks the rules of announcing."""

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
        """Implements PositionListener."""
        if prev == new and prev != self.positions.get(writer):  # advanced by a failover
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
        """Implements PositionListener."""
        self._case.assertTrue(self.linear <= prev < new)
        self.linear = new
        if facts is None:  # as at the start; followers read the facts from the table
            self.unseen.append(Range(prev, new))
            return
        self._case.assertTrue(all(prev < fact.token <= new for fact in facts))
        self.linear_facts += facts

    def missed(self, fact: Fact) -> bool:
        """True if linear followers have to read this fact from the table."""
        return any(fact.token in span for span in self.unseen)


class RecordingLog:
    """A log that records its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        self.lines.append(format.format(**facts))

    warn = info


class AnnouncingProcess:
    """A master that writes :data:`NOTES` and announces them, without clients.

    The recorder has the place of the publisher.
    """

    def __init__(self, case: TestCase, process: Process, writer: str, poll_s: float = 1.0) -> None:
        self.log = RecordingLog()
        self.listener = RecordingListener(case)
        catalogue = Catalogue([NOTES])
        services = build_master(
            process.scheduler,
            process.store,
            Coherence(make_caches(), catalogue, self.log),
            catalogue,
            self.log,
            name=writer,
            poll_s=poll_s,
            watched=lambda publisher: self.listener,
        )
        self.announcer = services.announcer
        self.writer = services.writer

    async def start(self) -> None:
        """Start or stop, as a master does."""
        await self.writer.start()
        await self.announcer.start()

    async def stop(self) -> None:
        """Start or stop, as a master does."""
        await self.announcer.stop()
        await self.writer.stop()

    @property
    def state(self) -> StreamState:
        """The state of the stream."""
        return self.announcer.states[NOTES.name]

    def sees(self, writer: str) -> bool:
        """True if ``writer`` may hold unsettled tokens, according to the last observation."""
        seen = self.state.observation
        return seen is not None and writer in seen.writers and bool(seen.writers[writer].holders)
