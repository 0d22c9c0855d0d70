"""The data of the simulated application, and the fact that announces each change.

Every key has a *version*, a number that only grows. A reader at a position must see at least the newest
version that a fact at or below this position announces (R4).
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

#: All keys.
ITEMS: tuple[DataKey, ...] = tuple(("item", shelf, n) for shelf in SHELVES for n in NUMBERS)
LABELS: tuple[DataKey, ...] = tuple(("label", n) for n in NUMBERS)
TALLIES: tuple[DataKey, ...] = tuple(("tally", n) for n in NUMBERS)
KEYS = (*ITEMS, *LABELS, *TALLIES)


def views_of(process: str) -> tuple[DataKey, ...]:
    """The keys that the transactional handler of a process maintains."""
    return tuple(("view", process, number) for number in NUMBERS)


def tally_of(number: int) -> int:
    """The tally that a row of ``jobs`` increments; nothing else changes it."""
    return number % len(NUMBERS)


class VersionFact(NamedTuple):
    """A fact that announces a version."""

    version: int
    stream: str
    writer: str
    token: Token


class ApplicationData:
    """The committed data and its history.

    :ivar changed: called with each key that gets a new version
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
        """Total number of versions."""
        return sum(self._versions.values())

    def version(self, key: DataKey) -> int:
        """The current version of a key."""
        return self._versions[key]

    def fact_of(self, key: DataKey, version: int) -> VersionFact:
        """The fact that announces a version."""
        return next(fact_of for fact_of in self._facts[key] if fact_of.version == version)

    def least(self, key: DataKey, at: Mapping[tuple[str, str], Token]) -> int:
        """The oldest version that a reader at these positions may see."""
        return next((fact_of.version for fact_of in self._covered(key, at)), 0)

    def has_changed(self, key: DataKey, since: Token, at: Mapping[tuple[str, str], Token]) -> bool:
        """Whether a fact above ``since``, at or below these positions, announces a change."""
        return any(fact_of.token > since for fact_of in self._covered(key, at))

    def _covered(self, key: DataKey, at: Mapping[tuple[str, str], Token]) -> Iterator[VersionFact]:
        """Yield the announcing facts at or below these positions, newest first."""
        for fact_of in reversed(self._facts[key]):
            of_writer, of_all = (fact_of.stream, fact_of.writer), (fact_of.stream, ALL)
            if fact_of.token <= max(at.get(of_writer, 0), at.get(of_all, 0)):
                yield fact_of

    # -- changes ----------------------------------------------------------------

    def begin(self) -> ApplicationTransaction:
        """Begin a transaction that may change the data."""
        return ApplicationTransaction(self)

    def change(self, keys: Iterable[DataKey]) -> dict[DataKey, int]:
        """Commit a transaction, immediately before its facts; returns the new versions."""
        fresh = self._grow(keys)
        self._without_fact |= fresh
        return fresh

    def committed(self, stream: str, fact: Fact) -> None:
        """A fact was committed: it announces what its transaction has just changed."""
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
        """The transaction of a handler was committed, together with the position ``upto``."""
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
        """Check that every change was announced."""
        if self._without_fact:
            self._violations.add(
                "R4", "no fact announces {without_fact}", without_fact=self._without_fact
            )


def _counted(facts: Iterable[Fact]) -> Iterable[int]:
    """The tallies that facts of ``jobs`` increment, in deterministic order."""
    return dict.fromkeys(tally_of(getattr(row, "number", 0)) for fact in facts for row in fact.rows)


class ApplicationTransaction(MemoryChanges):
    """A transaction in the simulated database.

    :ivar versions: the new versions of the keys it changed; None until it commits
    """

    def __init__(self, data: ApplicationData) -> None:
        self._data = data
        self._keys: dict[DataKey, None] = {}
        self.versions: Mapping[DataKey, int] | None = None

    def change(self, key: DataKey) -> None:
        """Give a key a new version when the transaction commits."""
        self._keys[key] = None

    def commit(self) -> None:
        """Take effect, together with the facts."""
        self.versions = self._data.change(self._keys)
