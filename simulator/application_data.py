"""What a simulated application keeps in the database, and which fact tells of each change.

Every key has a *version*, a number that only grows. Whoever reads at a position
must see at least the newest version of which a fact at or below it tells (R4).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from simulator.transcript import Transcript
from simulator.truth import ALL, Violations
from synrepl.core.tokens import Token
from synrepl.storage.memory.changes import MemoryChanges
from synrepl.streams.definition import Fact
from synrepl.streams.synapse.caches import CACHES

#: A cached function and its arguments.
DataKey = tuple[str | int, ...]

SHELVES = ("a", "b")
NUMBERS = (0, 1)

#: Everything that there is.
ITEMS: tuple[DataKey, ...] = tuple(("item", shelf, n) for shelf in SHELVES for n in NUMBERS)
LABELS: tuple[DataKey, ...] = tuple(("label", n) for n in NUMBERS)
TALLIES: tuple[DataKey, ...] = tuple(("tally", n) for n in NUMBERS)
KEYS = (*ITEMS, *LABELS, *TALLIES)


def views_of(process: str) -> tuple[DataKey, ...]:
    """What the transactional handler of one process keeps in the database."""
    return tuple(("view", process, number) for number in NUMBERS)


def tally_of(number: int) -> int:
    """The tally that a row of ``jobs`` counts for: this alone changes it."""
    return number % len(NUMBERS)


class VersionFact(NamedTuple):
    """A fact tells of a version."""

    version: int
    stream: str
    writer: str
    token: Token


class ApplicationData:
    """The committed data, and its history.

    :ivar changed: told of each key with a new version
    """

    def __init__(self, transcript: Transcript, violations: Violations) -> None:
        self._transcript = transcript
        self._violations = violations
        self._versions: defaultdict[DataKey, int] = defaultdict(int)
        self._facts: defaultdict[DataKey, list[VersionFact]] = defaultdict(list)
        self._without_fact: dict[DataKey, int] = {}
        self.changed: Callable[[DataKey], object] = lambda key: None

    @property
    def count(self) -> int:
        """How many versions there have been."""
        return sum(self._versions.values())

    def version(self, key: DataKey) -> int:
        """What somebody who looks now sees."""
        return self._versions[key]

    def fact_of(self, key: DataKey, version: int) -> VersionFact:
        """What tells of a version."""
        return next(fact_of for fact_of in self._facts[key] if fact_of.version == version)

    def least(self, key: DataKey, at: Mapping[tuple[str, str], Token]) -> int:
        """The version that a reader who stands at these positions must see, or a newer one."""
        return next((fact_of.version for fact_of in self._covered(key, at)), 0)

    def has_changed(self, key: DataKey, since: Token, at: Mapping[tuple[str, str], Token]) -> bool:
        """Whether, for a reader at these positions, a fact above ``since`` tells of a change."""
        return any(fact_of.token > since for fact_of in self._covered(key, at))

    def _covered(self, key: DataKey, at: Mapping[tuple[str, str], Token]) -> Iterator[VersionFact]:
        """What tells of versions at or below positions, the newest first."""
        for fact_of in reversed(self._facts[key]):
            of_writer, of_all = (fact_of.stream, fact_of.writer), (fact_of.stream, ALL)
            if fact_of.token <= max(at.get(of_writer, 0), at.get(of_all, 0)):
                yield fact_of

    # -- what happens to it ----------------------------------------------------------------

    def begin(self) -> ApplicationTransaction:
        """A transaction that may change it."""
        return ApplicationTransaction(self)

    def change(self, keys: Iterable[DataKey]) -> dict[DataKey, int]:
        """A transaction commits, and its facts in the same moment; the new versions."""
        fresh = self._grow(keys)
        self._without_fact |= fresh
        return fresh

    def committed(self, stream: str, fact: Fact) -> None:
        """A fact commits: it tells of what its transaction has just changed."""
        if stream == CACHES.name:
            without_fact, self._without_fact = self._without_fact, {}
        elif stream == "jobs":
            without_fact = self._grow(("tally", number) for number in _counted([fact]))
        else:
            return
        self._attach(without_fact, stream, fact.writer, fact.token)
        if without_fact and stream == CACHES.name:
            self._transcript.add(
                "database", "{token} of {writer} in {stream} announces {without_fact}",
                token=fact.token, writer=fact.writer, stream=stream, without_fact=without_fact,
            )  # fmt: skip

    def handled(
        self, process: str, stream: str, writer: str, upto: Token, facts: Sequence[Fact]
    ) -> None:
        """The transaction of a handler commits, and with it the position ``upto``."""
        if stream == "jobs":
            grown = self._grow(("view", process, number) for number in _counted(facts))
            self._attach(grown, stream, writer, upto)

    def _attach(
        self, versions: Mapping[DataKey, int], stream: str, writer: str, token: Token
    ) -> None:
        for key, version in versions.items():
            self._facts[key].append(VersionFact(version, stream, writer, token))
            self.changed(key)

    def _grow(self, keys: Iterable[DataKey]) -> dict[DataKey, int]:
        fresh: dict[DataKey, int] = {}
        for key in keys:
            fresh[key] = self._versions[key] = self._versions[key] + 1
        return fresh

    def check(self) -> None:
        """Every change has been told."""
        if self._without_fact:
            self._violations.add(
                "R4", "no fact announces {without_fact}", without_fact=self._without_fact
            )


def _counted(facts: Iterable[Fact]) -> Iterable[int]:
    """The tallies that facts of ``jobs`` count for, in a certain order."""
    return dict.fromkeys(tally_of(getattr(row, "number", 0)) for fact in facts for row in fact.rows)


class ApplicationTransaction(MemoryChanges):
    """A transaction in the simulated database.

    :ivar versions: once it is committed, what has become of the keys it changed
    """

    def __init__(self, data: ApplicationData) -> None:
        self._data = data
        self._keys: dict[DataKey, None] = {}
        self.versions: Mapping[DataKey, int] | None = None

    def change(self, key: DataKey) -> None:
        """Give a key a new version, when this commits."""
        self._keys[key] = None

    def commit(self) -> None:
        """Let it take effect, together with the facts."""
        self.versions = self._data.change(self._keys)
