"""A stream of the simulated database that tracks what is reserved, settled and committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from simulator.position_checker import CommitChecker
from simulator.truth import ALL
from synrepl.core.tokens import Token
from synrepl.storage.database import SerializationFailure
from synrepl.storage.memory.server import MemoryServer
from synrepl.storage.memory.stream import MemoryStream
from synrepl.storage.store import Drained, Observation
from synrepl.streams.definition import Fact, Stream

MAX_ROWS = 1_000_000

#: Called with a stream and facts of it.
FactsCallback = Callable[[Stream, Sequence[Fact]], object]


class _Taken(NamedTuple):
    """The reservation of a token.

    :ivar number: of the reservation
    :ivar known: whether its process knows that it has reserved the token, outside of any transaction
    """

    writer: str
    epoch: int
    number: int
    known: bool = False


class WriterSnapshot(NamedTuple):
    """A writer as seen by a transaction with a snapshot, however old.

    :ivar decided: changes with each decision about the writer
    """

    draining: bool
    decided: tuple[int, int]


class WatchedStream(MemoryStream):
    """Reports commits and trims to the checkers, and tracks tokens.

    :param committed: called at each commit
    :param gone: called with trimmed facts
    :ivar last_taken: by writer, the last token taken
    :ivar draining: writers that get no tokens
    :ivar died: writers that were fenced since they last took their names
    :ivar removed: removed writers
    """

    def __init__(
        self,
        stream: Stream,
        commits: CommitChecker,
        committed: FactsCallback,
        gone: FactsCallback,
        server: MemoryServer | None = None,
    ) -> None:
        super().__init__(stream, MAX_ROWS, server)
        self._commits = commits
        self._committed = committed
        self._gone = gone
        self._taken: dict[Token, _Taken] = {}
        self._taking: tuple[str, int] = ("", 0)
        #: By writer: tokens taken at or below this must not be committed any more.
        self._void_upto: dict[str, Token] = {}
        self.last_taken: dict[str, Token] = {}
        self._generation: Counter[str] = Counter()
        #: By writer, the number of open transactions with an old snapshot that took tokens.
        self._let_in: Counter[str] = Counter()
        self.draining: set[str] = set()
        self.died: set[str] = set()
        self.removed: set[str] = set()
        self.writer("sql")

    def hold(self, name: str, describe: str) -> int:
        """Begin a reservation; the tokens taken next belong to it."""
        number = super().hold(name, describe)
        self._taking = name, number
        return number

    def take(self, how_many: int, floor: Token) -> list[Token]:
        """Take tokens from the sequence for the last reservation.

        :raises Drained: the writer is drained
        """
        writer, number = self._taking
        if how_many and writer in self.draining:
            self.release(writer, [number])
            raise Drained(writer=writer, stream=self.stream.name)
        return self._give(how_many, floor)

    def snapshot(self, writer: str) -> WriterSnapshot:
        """A writer as seen by a transaction that begins now."""
        return WriterSnapshot(writer in self.draining, self._decided(writer))

    def take_by_snapshot(self, known: WriterSnapshot) -> Token:
        """Take a token for the last reservation, in a transaction with an old snapshot.

        The drain of the writer is not concluded before :meth:`leave_snapshot`.

        :raises Drained: the writer is drained according to the snapshot
        :raises SerializationFailure: there was a decision about the writer since the snapshot
        """
        writer, _ = self._taking
        if known.draining:
            raise Drained(writer=writer, stream=self.stream.name)
        if known.decided != self._decided(writer):
            raise SerializationFailure(
                name="append", attempts=1, sqlstate="40001", reason="the snapshot is too old"
            )
        self._let_in[writer] += 1
        return self._give(1, 0)[0]

    def leave_snapshot(self, writer: str) -> None:
        """A transaction that took tokens with an old snapshot has ended."""
        self._let_in[writer] -= 1

    def _decided(self, writer: str) -> tuple[int, int]:
        return self.writers[writer].epoch, self._generation[writer]

    def _give(self, how_many: int, floor: Token) -> list[Token]:
        writer, number = self._taking
        tokens = super().take(how_many, floor)
        if tokens:
            self.last_taken[writer] = tokens[-1]
            taken = _Taken(writer, self.writers[writer].epoch, number)
            self._taken.update(dict.fromkeys(tokens, taken))
        return tokens

    def reservation_known(self, tokens: Sequence[Token]) -> None:
        """The process knows now that it has reserved these tokens."""
        for token in tokens:
            if token in self._taken:
                self._taken[token] = self._taken[token]._replace(known=True)

    def release(self, name: str, numbers: Iterable[int]) -> None:
        """End reservations, which settles their tokens.

        Tokens whose process knows that it has reserved them, but lost its session, stay unsettled:
        until the writer is fenced, it may still write.
        """
        gone = set(numbers)
        super().release(name, gone)
        lost = self.writers[name].session is None
        for token, taken in list(self._taken.items()):
            if taken.number in gone and not (taken.known and lost):
                del self._taken[token]

    def release_tokens(self, tokens: Sequence[Token]) -> None:
        """The writer will not write these tokens any more, whatever locks it still holds."""
        for token in tokens:
            self._taken.pop(token, None)

    def fence(self, name: str) -> bool:
        """Fence a dead writer."""
        fenced = super().fence(name)
        if fenced:
            self.void_tokens(name)
            self.died.add(name)
        return fenced

    def conclude_drain(self, name: str) -> bool:
        """Exclude transactions from before the drain; False while one has taken tokens."""
        if name not in self.draining or self._let_in[name]:
            return False
        self._generation[name] += 1
        return True

    def remove(self, name: str) -> None:
        """Remove a writer; a process with its old number is refused."""
        writer = self.writers[name]
        writer.epoch += 1
        writer.held = False
        self.void_tokens(name)
        self.draining.discard(name)
        self.died.discard(name)
        self.removed.add(name)

    def bring_back(self, name: str) -> bool:
        """Allow a drained or removed writer again; False for any other."""
        gone = name in self.draining or name in self.removed
        self.draining.discard(name)
        self.removed.discard(name)
        return gone

    def observation(self) -> Observation:
        """Observe the stream."""
        seen = super().observation()
        if not self.removed:
            return seen
        writers = {
            name: replace(state, is_removed=True) if name in self.removed else state
            for name, state in seen.writers.items()
        }
        return replace(seen, writers=writers)

    def void_tokens(self, name: str) -> None:
        """Discard all tokens that a writer has taken so far."""
        self._void_upto[name] = self.last

    def rewind_sequence(self, token: Token) -> None:
        """Set the sequence back: tokens above, which no process knows, are given out again."""
        self.last = token
        self._void_upto = {
            name: min(void_tokens, token) for name, void_tokens in self._void_upto.items()
        }

    @property
    def tokens(self) -> frozenset[Token]:
        """The tokens of all stored facts."""
        return frozenset(fact.token for fact in self._facts)

    def restore(self, tokens: Collection[Token], last: Token) -> None:
        """Reset to a promoted server, which has only these facts, and no open reservation."""
        self._facts = [fact for fact in self._facts if fact.token in tokens]
        self._rows = sum(len(fact.rows) for fact in self._facts)
        self._taken.clear()
        self.rewind_sequence(last)

    def commit(self, facts: Sequence[Fact]) -> None:
        """Commit facts, and check that."""
        super().commit(facts)
        kept = [fact for fact in facts if fact.rows]
        self._commits.committed(self.stream.name, kept, self._void_upto)
        if kept:
            self._committed(self.stream, kept)

    def _drop(self, how_many: int) -> None:
        gone = list(islice(self._facts, how_many))
        super()._drop(how_many)
        self._gone(self.stream, gone)

    def unsettled(self, writer: str) -> Token | None:
        """The smallest unsettled token of a writer, or of :data:`~.truth.ALL`."""
        smallest: Token | None = None
        for token, taken in list(self._taken.items()):
            if taken.epoch != self.writers[taken.writer].epoch:
                del self._taken[token]
            elif writer in (ALL, taken.writer) and (smallest is None or token < smallest):
                smallest = token
        return smallest
