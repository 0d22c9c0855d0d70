"""One stream of the simulated database, watched: what is reserved, settled and committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from synrepl.core.tokens import Token
from synrepl.storage.memory_stream import MemoryStream
from synrepl.streams.definition import Fact, Stream
from synrepl.testing.simulator.position_checker import CommitChecker
from synrepl.testing.simulator.truth import ALL

MAX_ROWS = 1_000_000


class _Taken(NamedTuple):
    """Who took a token.

    :ivar number: of the reservation
    :ivar known: its process knows that it has reserved it, outside of any transaction
    """

    writer: str
    epoch: int
    number: int
    known: bool = False


class WatchedStream(MemoryStream):
    """Tells the checkers what happens to its tokens.

    :param notify: called with the stream's name after each commit, as NOTIFY does
    """

    def __init__(
        self, stream: Stream, commits: CommitChecker, notify: Callable[[str], object]
    ) -> None:
        super().__init__(stream, MAX_ROWS)
        self._commits = commits
        self._notify = notify
        self._taken: dict[Token, _Taken] = {}
        self._taking: tuple[str, int] = ("", 0)
        #: By writer: what was taken at or below may never appear any more.
        self._void: dict[str, Token] = {}
        self.writer("sql")

    def hold(self, name: str, describe: str) -> int:
        """Note a reservation; the tokens taken next are its own."""
        number = super().hold(name, describe)
        self._taking = name, number
        return number

    def take(self, how_many: int, floor: Token) -> list[Token]:
        """Tokens from the sequence, in the name of the reservation noted last."""
        tokens = super().take(how_many, floor)
        writer, number = self._taking
        if tokens:
            taken = _Taken(writer, self.writers[writer].epoch, number)
            self._taken.update(dict.fromkeys(tokens, taken))
        return tokens

    def answered(self, tokens: Sequence[Token]) -> None:
        """Their process knows now that it has reserved them."""
        for token in tokens:
            if token in self._taken:
                self._taken[token] = self._taken[token]._replace(known=True)

    def let_go(self, name: str, numbers: Iterable[int]) -> None:
        """Forget reservations: their tokens are settled.

        Not so when the session was lost of a process that knows that it has
        reserved them: until the writer is fenced, it may still write.
        """
        gone = set(numbers)
        super().let_go(name, gone)
        lost = self.writers[name].session is None
        for token, taken in list(self._taken.items()):
            if taken.number in gone and not (taken.known and lost):
                del self._taken[token]

    def give_back(self, tokens: Sequence[Token]) -> None:
        """Their writer will not write them any more, whatever locks it still holds."""
        for token in tokens:
            self._taken.pop(token, None)

    def fence(self, name: str) -> bool:
        """Raise the epoch of a writer that died."""
        fenced = super().fence(name)
        if fenced:
            self.void(name)
        return fenced

    def void(self, name: str) -> None:
        """What a writer has taken until now is void."""
        self._void[name] = self.last

    def commit(self, facts: Sequence[Fact]) -> None:
        """Make facts visible, and have that judged."""
        super().commit(facts)
        kept = [fact for fact in facts if fact.rows]
        self._commits.committed(self.stream.name, kept, self._void)
        if kept:
            self._notify(self.stream.name)

    def unsettled(self, writer: str) -> Token | None:
        """The smallest token of a writer, or of :data:`~.truth.ALL`, that may still appear."""
        smallest: Token | None = None
        for token, taken in list(self._taken.items()):
            if taken.epoch != self.writers[taken.writer].epoch:
                del self._taken[token]
            elif writer in (ALL, taken.writer) and (smallest is None or token < smallest):
                smallest = token
        return smallest
