"""Decides what a follower does with each line: apply it, drop it, or fetch missing rows first.

Source: ``docs/protocol.md``, "A connection", and recordings of real servers.

**Current and modern peers.** A connection begins with a POSITION for each
writer. Until then RDATA is dropped, because that POSITION makes the follower
fetch. From then on nothing is missing as long as each POSITION's ``prev`` is
the follower's own position, or the token it received last.

**Legacy peers.** The follower requests rows from its own position, and every row
before the answering POSITION is above the requested token. Rows of one fact repeat
their number in such a *replay*, so a row is a duplicate only when it is at or below
the position, and a fact is complete only when a row with a larger token, or the
POSITION, arrives. The position stays below the fact until then: after a connection
breaks in the middle of a fact, the replay resumes before it. A follower that must not
see part of a fact twice holds rows back until :attr:`Cursor.position` reaches their token.

**Real servers announce ahead.** They answer any REPLICATE with their position in the
database, and only afterwards send the rows below it that they had not sent yet. A
follower that fetches has those rows by then, so they are duplicates. One that cannot
fetch must not treat them as known: see :meth:`Cursor.skip` and ``every_row``.

**Unordered streams of real servers** send bursts newest first, repeat rows and
send them late. Every row is applied, even before the first POSITION. A burst is
known to be complete only when a token larger than all of it, or a POSITION,
arrives, so the position stays behind until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from synrepl.core.tokens import Range, Token


class CursorDecision(Enum):
    """What to do with a line, when nothing has to be fetched."""

    APPLY = "apply"
    #: Already applied: drop it.
    DUPLICATE = "duplicate"
    #: RDATA before the first POSITION of this connection: drop it.
    NOT_CONNECTED = "not connected"
    #: RDATA during a fetch: keep it, and decide again afterwards.
    HOLD = "hold"
    #: The position has advanced and no rows are missing.
    ADVANCED = "advanced"


class Fetch(NamedTuple):
    """Rows are missing: fetch those in ``span``, apply them, then call :meth:`Cursor.caught_up`.

    On a legacy connection, fetching means sending REPLICATE again from ``span.after``.
    """

    span: Range


class Reset(NamedTuple):
    """An in-memory writer restarted: discard what came from it before, then fetch as for :class:`Fetch`."""

    span: Range


class Cursor:
    """A follower's position in one stream of one writer.

    Request a decision for each line in order, after the previous one was carried
    out: call :meth:`applied` after a fact, :meth:`caught_up` after a fetched page.
    Only those calls move the position.

    :param position: everything of the writer at or below it is applied; None to
        start at the writer's position when the connection is made
    :param unordered: the stream's rows commute and its server keeps no order
    :param in_memory: the stream is lost with its writer, so a lower position means a restart
    :param mixed: a legacy server replays missed rows in no order; only its POSITION
        shows that all of them have arrived
    :param every_row: a row is a duplicate only when it was received or fetched before,
        whatever a POSITION said
    """

    def __init__(
        self,
        position: Token | None,
        *,
        unordered: bool = False,
        in_memory: bool = False,
        mixed: bool = False,
        every_row: bool = False,
    ) -> None:
        self._mixed = mixed
        self._every_row = every_row
        self._position = position
        self._known = position  # a row at or below it is a duplicate
        self._unordered = unordered
        self._in_memory = in_memory
        self.connection_lost()

    @property
    def position(self) -> Token | None:
        """Everything of the writer at or below it is applied, completely."""
        return self._position

    @property
    def is_connected(self) -> bool:
        """Whether this connection has had its first POSITION."""
        return self._connected

    @property
    def is_replaying(self) -> bool:
        """Whether a legacy server is replaying: rows arrive one by one until its POSITION."""
        return self._replaying

    @property
    def is_ordered(self) -> bool:
        """Whether tokens currently arrive in ascending order."""
        return not (self._unordered or (self._mixed and self._replaying))

    def connection_lost(self) -> None:
        """Forget the state of the lost connection."""
        self._connected = False
        self._replaying = False  # between our REPLICATE and its POSITION, legacy only
        self._fetching: Token | None = None  # end of the unfinished fetch
        self._last = self._highest = self._position  # received on this connection

    def subscribed(self) -> Token | None:
        """Note that REPLICATE is being sent to a legacy server.

        :returns: the token to request from; None for ``NOW``
        """
        self._replaying = True
        self._fetching = None
        self._last = self._highest = self._position
        return self._position

    def on_rdata(self, token: Token) -> CursorDecision:
        """Decide about one fact (or, in a legacy replay, one row) at ``token``."""
        if self._unordered:
            return CursorDecision.APPLY
        if self._fetching is not None:
            return CursorDecision.HOLD
        if not (self._connected or self._replaying):
            return CursorDecision.NOT_CONNECTED
        known = self._known is not None and token <= self._known
        return CursorDecision.DUPLICATE if known else CursorDecision.APPLY

    def on_position(self, prev: Token | None, new: Token) -> CursorDecision | Fetch | Reset:
        """Decide about a POSITION.

        When the follower's own position is at or above ``new``, there is nothing
        to do, whatever ``prev`` says.

        :param prev: the token sent before; None in dialects without it
        :param new: everything of the writer at or below it is available
        """
        own = self._position
        # ``prev`` is what the server sent last: the lowest token of a burst that is newest first,
        # or the highest, when it repeats its position.
        sent = (own, self._last, self._highest)
        whole = self._replaying or own is None or (prev is not None and prev in sent)
        if self._replaying:
            self._know(self._highest)
        self._connected = True
        self._replaying = False
        if own is not None and new < own and self._in_memory:
            self._position = self._known = 0
            return Reset(self._begin_fetch(0, new))
        if own is not None and new <= own:
            self._last = new
            return CursorDecision.DUPLICATE
        if whole and self._fetching is None:
            self._move(new, known=not self._every_row)
            return CursorDecision.ADVANCED
        assert own is not None
        return Fetch(self._begin_fetch(own, new))

    def applied(self, token: Token) -> None:
        """Note that a fact was applied."""
        if not (self._connected or self._replaying) or self._fetching is not None:
            return  # an unordered row says nothing about the rows around it
        if self._mixed and self._replaying:
            return  # lower tokens may still arrive
        if not (self._replaying or self._unordered):
            self._move(token)
            return
        self._last = token
        if self._highest is None:
            self._highest = token
        elif token > self._highest:
            # The fact before is complete only now.
            self._position, self._highest = self._highest, token
            self._know(self._position)

    def all_applied(self, tokens: Sequence[Token]) -> None:
        """Note that several facts were applied; tokens ascend unless the stream is unordered."""
        if self._connected and not (self._replaying or self._unordered):
            self.applied(tokens[-1])
        else:
            for token in tokens:
                self.applied(token)

    def caught_up(self, upto: Token) -> None:
        """Note that everything fetched at or below ``upto`` is applied; the fetch may continue."""
        self._move(upto)
        if self._fetching is not None and upto >= self._fetching:
            self._fetching = None

    def skip(self, upto: Token) -> None:
        """Skip missing rows at or below ``upto`` that cannot be fetched.

        Those that still arrive on this connection count as new.
        """
        self._fetching = None
        self._move(upto, known=False)

    def rewind(self, position: Token) -> None:
        """Move back: facts above ``position`` may be lost, and those that are left are fetched again."""
        self._position = self._known = position
        self._last = self._highest = position

    def _begin_fetch(self, after: Token, upto: Token) -> Range:
        self._fetching = upto if upto > after else None
        self._last = self._highest = self._position
        return Range(after, upto)

    def _move(self, token: Token, known: bool = True) -> None:
        if self._position is None or token > self._position:
            self._position = token
        if known:
            self._know(token)
        self._last = self._highest = self._position

    def _know(self, token: Token | None) -> None:
        if token is not None and (self._known is None or token > self._known):
            self._known = token
