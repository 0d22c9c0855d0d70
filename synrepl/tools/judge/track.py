"""Checks the rows and POSITIONs of one writer of one stream on one connection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from synrepl.core.tokens import Token
from synrepl.tools.judge.rules import (
    BACKWARDS,
    BATCH,
    CATCH_UP,
    CATCH_UP_BATCH,
    CATCH_UP_ORDER,
    CHAIN,
    ORDER,
    RESUMED,
    REVERSED,
    SHARED_SEQUENCE,
    TOLD_AHEAD,
    UNORDERED,
    ProtocolRule,
    RuleFinding,
)
from synrepl.wire.commands import Position, Rdata


@dataclass(frozen=True, slots=True)
class StreamTraits:
    """What a judge has to know of streams; each is a set of their names.

    :ivar unordered: real servers send their rows in any order, and again
    :ivar in_memory: they begin again, lower, with their writer
    :ivar shared: they share their sequence of tokens with another one
    """

    unordered: frozenset[str] = field(default=frozenset())
    in_memory: frozenset[str] = field(default=frozenset())
    shared: frozenset[str] = field(default=frozenset())


class WriterTrack:
    """One writer of one stream; nothing of it grows with what is sent.

    A legacy server's answer to ``REPLICATE <stream> <token>`` is a *run*: from
    :meth:`asked` to the POSITION its rows may share tokens, but not use ``batch``.
    When a client asks again for a stream that it has, live rows are among them.

    A real server answers REPLICATE with its position in the database, which may be
    ahead of the rows that it has sent, and its chain goes on from those rows. So there
    are two marks: what was sent last, and how far its rows go.

    :param on_bus: it speaks on Redis, where lines can be lost
    """

    def __init__(self, stream: str, traits: StreamTraits, on_bus: bool = False) -> None:
        self._on_bus = on_bus
        self._unordered = stream in traits.unordered
        self._in_memory = stream in traits.in_memory
        self._shared = stream in traits.shared
        #: The token sent last, in a row or a POSITION.
        self.last: Token | None = None
        #: How far its rows go, and the POSITIONs that say that there are none.
        self._said: Token | None = None
        #: The largest token sent: a burst newest first ends with its smallest.
        self._highest: Token | None = None
        #: What no POSITION may be below.
        self._least: Token | None = None
        #: How often the client had asked when the last POSITION came; for its connection.
        self.announced = -1
        #: The same for Redis, or how often when its silence was found.
        self.answered = 0
        #: Line of the first row of a batch that is not finished.
        self.half: int | None = None
        self._running = False
        self._live = False  # it was answered before, so live rows come during a run
        self._run_after: Token | None = None
        self._run_highest: Token | None = None

    def asked(self, after: Token | None) -> None:
        """A legacy client asked for what is above ``after``; None for nothing of the past."""
        self._live = self._live or (self.last is not None and not self._running)
        self._running = True
        self._run_after = after
        self._run_highest = None
        self.last = self._least = None

    def row(self, rdata: Rdata, line: int) -> Iterator[RuleFinding]:
        """Take a row."""
        token = rdata.token
        if token is None:
            if self._running and not self._live:
                yield RuleFinding(CATCH_UP_BATCH, line, rdata.stream)
            if self.half is None:
                self.half = line
            return
        self.half = None
        if self._running:
            yield from self._row_of_run(rdata.stream, token, line)
        elif self.last is not None and token <= self.last:
            yield RuleFinding(
                self._again(token), line, f"{_name(rdata)}: {token} after {self.last}"
            )
        self.last = token
        self._said = max(token, self._said or token) if self._running else token
        self._highest = max(token, self._highest or token)
        if not self._unordered and not self._running:
            self._least = token

    def position(self, position: Position, line: int) -> Iterator[RuleFinding]:
        """Take a POSITION."""
        prev, new, name = position.prev, position.new, _name(position)
        if self.half is not None:
            yield RuleFinding(BATCH, line, f"{name}: the batch of line {self.half} has no end")
            self.half = None
        if self._run_highest is not None and new < self._run_highest and not self._live:
            yield RuleFinding(CATCH_UP, line, f"{name}: {new} after a row at {self._run_highest}")
        again = self._in_memory and self.last is not None and new < self.last
        if prev is not None:
            if new < prev:
                yield RuleFinding(REVERSED, line, f"{name}: {prev} to {new}")
            if self.last is not None and prev not in self._chain and not again:
                rule = self._ahead if prev == new and prev > self.last else CHAIN
                yield RuleFinding(rule, line, f"{name}: prev {prev}, sent last {self.last}")
        if self._least is not None and new < self._least and not self._in_memory:
            yield RuleFinding(BACKWARDS, line, f"{name}: {new} after {self._least}")
        self.last = self._least = new
        if again or (prev is not None and prev != new):
            self._said = new  # the older dialects do not tell such a POSITION from an answer
        self._highest = new if again else max(new, self._highest or new)
        self._running = False
        self._run_highest = None

    @property
    def _chain(self) -> tuple[Token | None, ...]:
        """What ``prev`` may be: what was sent last; of unordered rows, the furthest too.

        A server that has told a position ahead of its rows goes on from either.
        """
        return (self.last, self._said, self._highest if self._unordered else None)

    def _again(self, token: Token) -> ProtocolRule:
        """What a row is at or below what was sent last."""
        if self._unordered:
            return UNORDERED
        return TOLD_AHEAD if self._said is None or token > self._said else ORDER

    @property
    def _ahead(self) -> ProtocolRule:
        """What it is to be further than one has said."""
        if self._on_bus:
            return RESUMED
        return SHARED_SEQUENCE if self._shared else TOLD_AHEAD

    def _row_of_run(self, stream: str, token: Token, line: int) -> Iterator[RuleFinding]:
        if self._run_after is not None and token <= self._run_after:
            yield RuleFinding(
                CATCH_UP, line, f"{stream}: {token}, asked for above {self._run_after}"
            )
        if self.last is not None and token < self.last:
            rule = UNORDERED if self._unordered else CATCH_UP_ORDER
            yield RuleFinding(rule, line, f"{stream}: {token} after {self.last}")
        if self._run_highest is None or token > self._run_highest:
            self._run_highest = token


def _name(command: Rdata | Position) -> str:
    if command.writer is None:
        return command.stream
    return f"{command.stream} of {command.writer}"
