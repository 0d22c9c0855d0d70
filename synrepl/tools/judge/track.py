"""Checks the rows and POSITIONs of one writer of one stream on one connection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from synrepl.core.tokens import Token
from synrepl.tools.judge.rules import (
    ANNOUNCED_AHEAD,
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
    UNORDERED,
    ProtocolRule,
    RuleFinding,
)
from synrepl.wire.commands import Position, Rdata


@dataclass(frozen=True, slots=True)
class StreamTraits:
    """Names of the streams with properties that matter to the rules.

    :ivar unordered: streams whose rows real servers send in any order, and repeatedly
    :ivar in_memory: streams whose tokens start again at a lower number when their writer restarts
    :ivar shared: streams that share their sequence of tokens with another stream
    """

    unordered: frozenset[str] = field(default=frozenset())
    in_memory: frozenset[str] = field(default=frozenset())
    shared: frozenset[str] = field(default=frozenset())


class WriterTrack:
    """Tracks one writer of one stream in constant memory.

    A legacy server's answer to ``REPLICATE <stream> <token>`` is a *catch-up*. From
    :meth:`catch_up_requested` to the POSITION, its rows may share tokens, but not use ``batch``.
    When a client requests a stream again that it already gets, live rows are among them.

    A real server answers REPLICATE with its position in the database, which may be ahead of
    the rows that it has sent. The ``prev`` of its next POSITION still follows those rows. The
    track therefore keeps two tokens: the last one sent, and the one that its rows reach.

    :param on_bus: whether the traffic is from Redis, where lines can be lost
    :ivar last: the token sent last, in a row or a POSITION
    :ivar requests_at_position: number of REPLICATE commands on the connection when the last
        POSITION came; kept by the connection's judge
    :ivar answered_requests: on Redis, number of REPLICATE commands that were answered, or
        reported as unanswered
    :ivar open_batch_line: line of the first row of an unfinished batch; None outside of one
    """

    def __init__(self, stream: str, traits: StreamTraits, on_bus: bool = False) -> None:
        self._on_bus = on_bus
        self._unordered = stream in traits.unordered
        self._in_memory = stream in traits.in_memory
        self._shared = stream in traits.shared
        self.last: Token | None = None
        self.requests_at_position = -1
        self.answered_requests = 0
        self.open_batch_line: int | None = None
        #: The token up to which rows, or POSITIONs for ranges without rows, were sent.
        self._rows_upto: Token | None = None
        #: The largest token sent: a burst that is sent newest first ends with its smallest one.
        self._highest: Token | None = None
        #: The lower bound for the next POSITION.
        self._lower_bound: Token | None = None
        self._in_catch_up = False
        #: Whether a request was answered before, so that live rows can come during a catch-up.
        self._has_live_rows = False
        self._catch_up_after: Token | None = None
        self._catch_up_highest: Token | None = None

    def catch_up_requested(self, after: Token | None) -> None:
        """Begin a catch-up of a legacy client with rows above ``after``; None for none."""
        self._has_live_rows = self._has_live_rows or (
            self.last is not None and not self._in_catch_up
        )
        self._in_catch_up = True
        self._catch_up_after = after
        self._catch_up_highest = None
        self.last = self._lower_bound = None

    def row(self, rdata: Rdata, line: int) -> Iterator[RuleFinding]:
        """Judge a row."""
        token = rdata.token
        if token is None:
            if self._in_catch_up and not self._has_live_rows:
                yield RuleFinding(CATCH_UP_BATCH, line, rdata.stream)
            if self.open_batch_line is None:
                self.open_batch_line = line
            return
        self.open_batch_line = None
        if self._in_catch_up:
            yield from self._catch_up_row(rdata.stream, token, line)
        elif self.last is not None and token <= self.last:
            yield RuleFinding(
                self._rule_for_old_token(token), line, f"{_name(rdata)}: {token} after {self.last}"
            )
        self.last = token
        self._rows_upto = max(token, self._rows_upto or token) if self._in_catch_up else token
        self._highest = max(token, self._highest or token)
        if not self._unordered and not self._in_catch_up:
            self._lower_bound = token

    def position(self, position: Position, line: int) -> Iterator[RuleFinding]:
        """Judge a POSITION."""
        prev, new, name = position.prev, position.new, _name(position)
        if self.open_batch_line is not None:
            yield RuleFinding(
                BATCH, line, f"{name}: the batch of line {self.open_batch_line} has no end"
            )
            self.open_batch_line = None
        if (
            self._catch_up_highest is not None
            and new < self._catch_up_highest
            and not self._has_live_rows
        ):
            yield RuleFinding(
                CATCH_UP, line, f"{name}: {new} after a row at {self._catch_up_highest}"
            )
        is_restart = self._in_memory and self.last is not None and new < self.last
        if prev is not None:
            if new < prev:
                yield RuleFinding(REVERSED, line, f"{name}: {prev} to {new}")
            if self.last is not None and prev not in self._valid_prevs and not is_restart:
                rule = self._rule_for_position_ahead if prev == new and prev > self.last else CHAIN
                yield RuleFinding(rule, line, f"{name}: prev {prev}, sent last {self.last}")
        if self._lower_bound is not None and new < self._lower_bound and not self._in_memory:
            yield RuleFinding(BACKWARDS, line, f"{name}: {new} after {self._lower_bound}")
        self.last = self._lower_bound = new
        if is_restart or (prev is not None and prev != new):
            self._rows_upto = new  # in the older dialects such a POSITION looks like an answer
        self._highest = new if is_restart else max(new, self._highest or new)
        self._in_catch_up = False
        self._catch_up_highest = None

    @property
    def _valid_prevs(self) -> tuple[Token | None, ...]:
        """The valid values of ``prev``: the last token, the last one of rows, and, if unordered, the
        largest one.

        A server that has announced a position ahead of its rows may continue from either of them.
        """
        return (self.last, self._rows_upto, self._highest if self._unordered else None)

    def _rule_for_old_token(self, token: Token) -> ProtocolRule:
        """The rule broken by a row whose token is not above the last one."""
        if self._unordered:
            return UNORDERED
        return ANNOUNCED_AHEAD if self._rows_upto is None or token > self._rows_upto else ORDER

    @property
    def _rule_for_position_ahead(self) -> ProtocolRule:
        """The rule broken by a POSITION with ``prev`` and ``new`` above the last token."""
        if self._on_bus:
            return RESUMED
        return SHARED_SEQUENCE if self._shared else ANNOUNCED_AHEAD

    def _catch_up_row(self, stream: str, token: Token, line: int) -> Iterator[RuleFinding]:
        if self._catch_up_after is not None and token <= self._catch_up_after:
            yield RuleFinding(
                CATCH_UP, line, f"{stream}: {token}, asked for above {self._catch_up_after}"
            )
        if self.last is not None and token < self.last:
            rule = UNORDERED if self._unordered else CATCH_UP_ORDER
            yield RuleFinding(rule, line, f"{stream}: {token} after {self.last}")
        if self._catch_up_highest is None or token > self._catch_up_highest:
            self._catch_up_highest = token


def _name(command: Rdata | Position) -> str:
    if command.writer is None:
        return command.stream
    return f"{command.stream} of {command.writer}"
