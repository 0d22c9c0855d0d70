"""The ground truth: what was really committed, and the broken rules that were found."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Sequence

from simulator.transcript import Transcript
from synrepl.core.tokens import Token
from synrepl.streams.definition import Fact

#: Stands for all writers of a stream, where a writer's name could.
ALL = ""

#: The smallest unsettled token of (stream, writer or ALL); None when there is none.
Unsettled = Callable[[str, str], Token | None]


class Violations:
    """Collects broken rules. It does not raise, because the checked code might catch that."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self.found: list[str] = []

    def add(self, rule: str, words: str, **facts: object) -> None:
        """Add a broken rule."""
        sentence = f"{rule}: {words.format(**facts)}"
        self.found.append(sentence)
        self._transcript.add("CHECKER", "{sentence}", sentence=sentence)


class Truth:
    """All committed facts, and the published positions."""

    def __init__(self) -> None:
        self._facts: dict[str, dict[Token, Fact]] = {}
        self._order: dict[tuple[str, str], list[Token]] = {}
        self._trimmed: set[tuple[str, Token]] = set()
        self.published: dict[tuple[str, str], Token] = {}
        #: Facts lost by a failover, as (stream, token).
        self.lost: set[tuple[str, Token]] = set()

    def committed(self, stream: str, fact: Fact) -> bool:
        """Add a committed fact; False if its token was used before."""
        known = self._facts.setdefault(stream, {})
        if fact.token in known:
            return False
        known[fact.token] = fact
        for writer in (fact.writer, ALL):
            insort(self._order.setdefault((stream, writer), []), fact.token)
        return True

    def lose(self, stream: str, left: Collection[Token]) -> list[Fact]:
        """A failover has left only these facts of a stream; returns the lost ones."""
        known = self._facts.get(stream, {})
        gone = [fact for token, fact in known.items() if token not in left]
        for fact in gone:
            del known[fact.token]
            self.lost.add((stream, fact.token))
            for writer in (fact.writer, ALL):
                self._order[stream, writer].remove(fact.token)
        return gone

    def between(self, stream: str, writer: str, after: Token, upto: Token) -> Sequence[Fact]:
        """The committed facts of a writer, or of :data:`ALL`, in ``(after, upto]``."""
        tokens = self._order.get((stream, writer))
        if not tokens or tokens[-1] <= after:
            return ()
        known = self._facts[stream]
        found = tokens[bisect_right(tokens, after) : bisect_right(tokens, upto)]
        return [known[token] for token in found]

    def last(self, stream: str, writer: str = ALL) -> Token:
        """The largest committed token; 0 when there is none."""
        tokens = self._order.get((stream, writer))
        return tokens[-1] if tokens else 0

    def trimmed(self, stream: str, fact: Fact) -> None:
        """A fact was trimmed."""
        self._trimmed.add((stream, fact.token))

    def is_there(self, stream: str, fact: Fact) -> bool:
        """False once a fact was trimmed: a follower that has not received it may never receive it."""
        return (stream, fact.token) not in self._trimmed

    @property
    def count(self) -> int:
        """Number of facts."""
        return sum(map(len, self._facts.values()))

    def publish(self, stream: str, writer: str, position: Token) -> None:
        """A position of ``writer`` (or ALL) was published."""
        key = (stream, writer)
        if position > self.published.get(key, 0):
            self.published[key] = position
