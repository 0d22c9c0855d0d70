"""One stream in memory: its sequence, facts, writers and reservations."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, islice
from operator import attrgetter

from synrepl.core.tokens import Range, Token
from synrepl.storage.database import UniqueViolation
from synrepl.storage.incarnations import MARGIN
from synrepl.storage.memory.server import MemoryServer
from synrepl.storage.store import (
    BadValue,
    FactsLost,
    Fenced,
    Observation,
    Page,
    ReservationHolder,
    Trimmed,
    TrimResult,
    WriterState,
)
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import BadRow, RowCodec

_token = attrgetter("token")


class MemoryWriter:
    """One writer of a stream.

    :ivar session: the lease of the process that has the name; None without one
    :ivar transactions: number of open transactions that may still commit
    :ivar holders: reservations, by number
    :ivar trimmed: its last trimmed token
    """

    __slots__ = ("epoch", "held", "holders", "position", "session", "transactions", "trimmed")

    def __init__(self) -> None:
        self.epoch = 0
        self.position: Token = 0
        self.held = False
        self.session: object | None = None
        self.transactions = 0
        self.holders: dict[int, ReservationHolder] = {}
        self.trimmed: Token = 0

    @property
    def state(self) -> WriterState:
        """The state in an observation."""
        return WriterState(
            epoch=self.epoch,
            position=self.position,
            is_held=self.held,
            is_alive=self.session is not None,
            holders=tuple(self.holders.values()),
        )


class MemoryStream:
    """The data of one stream. Nothing here suspends, so every method is atomic.

    :param max_rows: beyond it, the oldest facts are dropped, but never the newest one
    :ivar server: the simulated server
    :ivar incarnation: of the server that advanced the stream to ``floor``
    """

    def __init__(self, stream: Stream, max_rows: int, server: MemoryServer | None = None) -> None:
        self.server = MemoryServer() if server is None else server
        self.incarnation = 1
        self.floor: Token = 0
        #: Failovers: number, floor, and by writer the position that certainly survived.
        self.losses: list[tuple[int, Token, Mapping[str, Token]]] = []
        self.stream = stream
        self.last: Token = 0
        self.recorded: Token = 0
        self.trimmed: Token = 0
        self.writers: dict[str, MemoryWriter] = {}
        self._max_rows = max_rows
        self._codec = RowCodec(stream)
        self._facts: list[Fact] = []
        self._rows = 0
        self._numbers = count(1)

    # -- writers ------------------------------------------------------------------

    def writer(self, name: str) -> MemoryWriter:
        """The writer of that name, added on first use."""
        return self.writers.setdefault(name, MemoryWriter())

    def enter(self, name: str, epoch: int) -> None:
        """Begin a transaction as a writer; its epoch cannot be raised until :meth:`leave`.

        :raises Fenced: the epoch was raised before
        :raises NotConfirmed:
        """
        self.server.require_confirmed()
        writer = self.writers[name]
        if writer.epoch != epoch:
            raise Fenced(writer=name, stream=self.stream.name, current=writer.epoch, epoch=epoch)
        writer.transactions += 1

    def leave(self, name: str) -> None:
        """End a transaction."""
        self.writers[name].transactions -= 1

    def hold(self, name: str, describe: str) -> int:
        """Add a reservation, before tokens are taken; return its number, which is never reused."""
        number = next(self._numbers)
        self.writers[name].holders[number] = ReservationHolder((number,), describe)
        return number

    def release(self, name: str, numbers: Iterable[int]) -> None:
        """Remove reservations, including those already removed."""
        for number in numbers:
            self.writers[name].holders.pop(number, None)

    def fence(self, name: str) -> bool:
        """Raise the epoch of a dead writer, once no transaction of it can commit."""
        writer = self.writers.get(name)
        if writer is None or not writer.held or writer.session or writer.transactions:
            return False
        writer.epoch += 1
        writer.held = False
        return True

    def given_out(self) -> Token:
        """The largest token that can have been given out."""
        positions = (writer.position for writer in self.writers.values())
        return max(self.last, self.recorded, self._highest(), *positions)

    def observation(self) -> Observation:
        """An observation of the stream."""
        states = {name: writer.state for name, writer in self.writers.items()}
        return Observation(
            self.last, self.recorded, states, self.trimmed, self.incarnation, self.floor
        )

    def fail_over(
        self,
        number: int,
        steps: int,
        announced: Mapping[str, Token],
        proofs: Iterable[tuple[str, Token]],
    ) -> None:
        """Advance beyond everything that can have been announced; see :meth:`~.store.FactStore.confirm`.

        :param steps: timelines since the last confirmed one
        :param proofs: positions of followers by writer, "" for all writers
        """
        positions = {name: writer.position for name, writer in self.writers.items()}
        kept = {"": max(self.recorded, self.trimmed), **positions}
        for name, position in proofs:
            kept[name] = max(position, kept.get(name, 0))
        kept = {name: max(at, kept[""]) for name, at in kept.items()}
        known = (self.last, self._highest(), *kept.values(), *announced.values())
        self.incarnation = number
        self.floor = self.last = self.recorded = max(known) + MARGIN * steps
        self.losses.append((number, self.floor, kept))
        for writer in self.writers.values():
            writer.epoch += (
                1_000_000 * steps
            )  # the old server may have had higher epochs than are known here
            writer.held, writer.session = False, None
            writer.holders.clear()
            writer.position = self.floor

    def lose(self, above: Token) -> None:
        """Drop facts, as a promoted server may."""
        self._facts = [fact for fact in self._facts if fact.token <= above]
        self._rows = sum(len(fact.rows) for fact in self._facts)

    def lost(self, span: Range, writer: str) -> Range | None:
        """The failover loss in which a span begins, and beyond which it ends, as (kept, floor)."""
        for _, floor, kept_of in self.losses:
            kept = max(kept_of.get(writer, 0), kept_of[""])
            if kept < span.after < floor - 1 and span.upto >= floor:
                return Range(kept, floor)
        return None

    # -- facts --------------------------------------------------------------------

    def check(self, rows: Iterable[Row]) -> None:
        """Refuse rows that a table would refuse.

        :raises BadRow: one is not a row of this stream
        :raises BadValue: one has a value that no column can hold
        """
        for row in rows:
            self._codec.kind_of(row)
            try:
                self._codec.check_storable(row)
            except BadRow as error:
                where = f"{self.stream.name}, {error.facts['path']}"
                raise BadValue(where=where, reason=error.facts["reason"]) from error

    def take(self, how_many: int, floor: Token) -> list[Token]:
        """Take tokens from the sequence, above every known token (R7)."""
        known = (floor, self.recorded, self.trimmed, self._highest())
        positions = (writer.position for writer in self.writers.values())
        after = max(self.last, *known, *positions)
        self.last = after + how_many
        return list(range(after + 1, self.last + 1))

    def commit(self, facts: Sequence[Fact]) -> None:
        """Make facts visible at once. Facts without rows leave no trace, as in a table.

        :raises UniqueViolation: there is a fact at one of the tokens; nothing changes
        """
        for fact in facts:
            at = bisect_right(self._facts, fact.token, key=_token)
            if at and self._facts[at - 1].token == fact.token:
                raise UniqueViolation(
                    name="commit",
                    sqlstate="23505",
                    constraint=f"_{self.stream.name}_pkey",
                    reason=f"there is a fact at {fact.token}",
                )
        for fact in facts:
            if fact.rows and fact.token > self.trimmed:
                insort(self._facts, fact, key=_token)
                self._rows += len(fact.rows)
            elif fact.rows:  # it is already below the trimmed position
                self._note_gone(fact)
        self._drop_oldest()

    def page(self, span: Range, writer: str | None, limit: int) -> Page:
        """About ``limit`` rows of the facts in ``span``; a fact is never split.

        :raises Trimmed: facts of the range were trimmed
        :raises FactsLost: the range begins among facts that a failover may have lost
        """
        lost = self.lost(span, writer or "")
        if lost is not None:
            raise FactsLost(
                stream=self.stream.name, kept=lost.after, floor=lost.upto, after=span.after
            )
        trimmed = self.trimmed if writer is None else self._trimmed_of(writer)
        if span.after < trimmed:
            raise Trimmed(stream=self.stream.name, trimmed=trimmed, after=span.after)
        if span.empty:
            return Page((), span.after, is_limited=False)
        found: list[Fact] = []
        rows = 0
        for fact in self._within(span):
            if writer is not None and fact.writer != writer:
                continue
            rows += len(fact.rows)
            if found and rows > limit:
                return Page(tuple(found), found[-1].token, is_limited=True)
            found.append(fact)
        return Page(tuple(found), span.upto, is_limited=False)

    def reached(self, span: Range) -> dict[str, Token]:
        """The largest token in ``span`` of each writer that has one there."""
        return {fact.writer: fact.token for fact in self._within(span)}

    def _within(self, span: Range) -> Iterable[Fact]:
        begin = bisect_right(self._facts, span.after, key=_token)
        return islice(self._facts, begin, bisect_right(self._facts, span.upto, key=_token))

    def _highest(self) -> Token:
        return self._facts[-1].token if self._facts else 0

    # -- trimming -----------------------------------------------------------------

    def trim(
        self,
        cap: Token,
        forced: Token,
        limit: int,
        acknowledged: Callable[[str], tuple[Token, str | None]],
    ) -> TrimResult:
        """Drop the oldest facts that may be trimmed; see :meth:`~.store.FactStore.trim`.

        :param acknowledged: by writer, the position acknowledged by all its followers, and
            the follower that is furthest behind
        """
        rows = drop = 0
        held_by: str | None = None
        for fact in self._facts:
            if fact.token > min(cap, self.recorded) or rows >= limit:
                break
            upto, follower = acknowledged(fact.writer)
            if fact.token > max(upto, forced):
                held_by = follower
                break
            rows += len(fact.rows)
            drop += 1
        self._drop(drop)
        return TrimResult(self.trimmed, rows, held_by)

    def _drop_oldest(self) -> None:
        if self._rows <= self._max_rows:
            return
        rows, drop = self._rows, 0
        keep = (
            self._max_rows * 3 // 4
        )  # drop more than needed, so that it does not happen every time
        while rows > keep and drop < len(self._facts) - 1:
            rows -= len(self._facts[drop].rows)
            drop += 1
        self._drop(drop)

    def _drop(self, how_many: int) -> None:
        for fact in islice(self._facts, how_many):
            self._rows -= len(fact.rows)
            self.trimmed = fact.token
            self._note_gone(fact)
        del self._facts[:how_many]

    def _note_gone(self, fact: Fact) -> None:
        writer = self.writer(fact.writer)
        writer.trimmed = max(writer.trimmed, fact.token)

    def _trimmed_of(self, writer: str) -> Token:
        known = self.writers.get(writer)
        return 0 if known is None else known.trimmed
