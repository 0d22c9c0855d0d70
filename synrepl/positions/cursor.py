"""A follower's verdict on what it hears: apply it, drop it, or fetch what is missing first.

Source: ``docs/protocol.md``, "A connection", and recordings of real servers.

**Current and modern peers.** A connection begins with a POSITION for each
writer; until then RDATA is dropped, because that POSITION makes the follower
fetch. From then on nothing is missing as long as each POSITION's ``prev`` is
the follower's own position, or the token it received last.

**Legacy peers.** The follower asks from its own position, and every row that
comes before the answering POSITION is above the token asked for. Rows of one
fact repeat their number there, so in such a *run* a row is a duplicate only
when it is at or below the position, and a fact is complete only when a row
with a larger token, or the POSITION, comes. The position stays below it until
then: a connection that breaks amid a fact is resumed before it, and whoever
must not see half a fact twice holds rows back until :attr:`Cursor.position`
reaches their token.

**Real servers announce ahead.** They answer anybody's REPLICATE with their position in
the database, and send the rows up to there that they had not sent yet only afterwards.
A follower that fetches has them by then, and they are duplicates. One that cannot fetch
must not take them for known: see :meth:`Cursor.skip` and ``every_row``.

**Unordered streams of real servers** send bursts newest first, repeat rows and
send them late. Every row is applied, even before the first POSITION. That a
burst is complete shows only when a larger token than all of it, or a POSITION,
comes, so here too the position stays behind until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from synrepl.core.tokens import Range, Token


class CursorDecision(Enum):
    """What to do about a line, when there is no range to fetch."""

    APPLY = "apply"
    #: Known already: drop it.
    DUPLICATE = "duplicate"
    #: RDATA before the first POSITION of this connection: drop it.
    NOT_CONNECTED = "not connected"
    #: RDATA while a fetch is not done: keep it and ask again afterwards.
    HOLD = "hold"
    #: The position has moved on and no rows are missing.
    ADVANCED = "advanced"


class Fetch(NamedTuple):
    """Rows are missing: get those in ``span``, apply them, then call :meth:`Cursor.caught_up`.

    On a legacy connection getting them means to ask again from ``span.after``.
    """

    span: Range


class Reset(NamedTuple):
    """The writer has started again: forget what came of the old one, then as for :class:`Fetch`."""

    span: Range


class Cursor:
    """Where a follower is with one writer of one stream.

    Ask for a verdict on each line in the order of the lines, after the work of
    the one before is done: :meth:`applied` after a fact, :meth:`caught_up`
    after a page that was fetched. The position moves only then.

    :param position: everything of the writer at or below it is applied; None to
        begin wherever the writer is when the connection is made
    :param unordered: the stream's rows commute and its server keeps no order
    :param in_memory: the stream is lost with its writer, so a lower position is a new start
    :param mixed: a legacy server answers with what was missed in no order; only its
        POSITION says that all of that has come
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
        """True from the first POSITION on this connection on."""
        return self._connected

    @property
    def is_replaying(self) -> bool:
        """True between asking a legacy server and its answering POSITION: rows come one by one."""
        return self._replaying

    @property
    def is_ordered(self) -> bool:
        """Whether tokens only grow now."""
        return not (self._unordered or (self._mixed and self._replaying))

    def connection_lost(self) -> None:
        """Forget what was only known of the connection that is gone."""
        self._connected = False
        self._replaying = False  # between our REPLICATE and its POSITION, legacy only
        self._fetching: Token | None = None  # up to here, when a fetch is not done
        self._last = self._highest = self._position  # received on this connection

    def subscribed(self) -> Token | None:
        """Note that rows are being asked for from a legacy server.

        :returns: the token to ask from; None for ``NOW``
        """
        self._replaying = True
        self._fetching = None
        self._last = self._highest = self._position
        return self._position

    def on_rdata(self, token: Token) -> CursorDecision:
        """The verdict on one fact (or, in a legacy run, one row) at ``token``."""
        if self._unordered:
            return CursorDecision.APPLY
        if self._fetching is not None:
            return CursorDecision.HOLD
        if not (self._connected or self._replaying):
            return CursorDecision.NOT_CONNECTED
        known = self._known is not None and token <= self._known
        return CursorDecision.DUPLICATE if known else CursorDecision.APPLY

    def on_position(self, prev: Token | None, new: Token) -> CursorDecision | Fetch | Reset:
        """The verdict on a POSITION.

        Only the follower's own position counts: when it is at or above ``new``
        there is nothing to do, whatever ``prev`` says.

        :param prev: the token sent before, which older dialects do not tell
        :param new: everything of the writer at or below it can be had
        """
        own = self._position
        # A server's ``prev`` is what it sent last: in a burst newest first its lowest token,
        # or when it says again where it is, the highest.
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
        """A fact that was to be applied is applied."""
        if not (self._connected or self._replaying) or self._fetching is not None:
            return  # an unordered row that tells nothing about the rows around it
        if self._mixed and self._replaying:
            return  # what is below it may still come
        if not (self._replaying or self._unordered):
            self._move(token)
            return
        self._last = token
        if self._highest is None:
            self._highest = token
        elif token > self._highest:
            # What came before is complete only now.
            self._position, self._highest = self._highest, token
            self._know(self._position)

    def all_applied(self, tokens: Sequence[Token]) -> None:
        """Facts that were to be applied, at ascending tokens unless the stream is unordered, are."""
        if self._connected and not (self._replaying or self._unordered):
            self.applied(tokens[-1])
        else:
            for token in tokens:
                self.applied(token)

    def caught_up(self, upto: Token) -> None:
        """Everything that was fetched at or below ``upto`` is applied; the fetch may go on."""
        self._move(upto)
        if self._fetching is not None and upto >= self._fetching:
            self._fetching = None

    def skip(self, upto: Token) -> None:
        """What seemed to be missing at or below ``upto`` cannot be fetched: go on from there.

        Rows of it that still come on this connection are new all the same.
        """
        self._fetching = None
        self._move(upto, known=False)

    def rewind(self, position: Token) -> None:
        """What was applied above ``position`` may be lost; what is left of it is fetched again."""
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
