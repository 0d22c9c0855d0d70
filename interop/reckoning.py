"""What real workers have to have counted, reckoned from what was appended and what they asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from interop.releases import LEGACY, RELEASES, Release
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.synapse import SYNAPSE_STREAMS

_CATALOGUE = Catalogue(SYNAPSE_STREAMS)


@dataclass(slots=True)
class Phase:
    """Facts that were appended together.

    :ivar appended: (token, number of rows) of each fact, by stream
    :ivar run: which run of the master they were appended to; what it keeps in
        memory is gone with it
    """

    name: str
    run: int
    appended: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def rows(self, stream: str, above: int = 0) -> int:
        """How many rows of a stream were appended at larger tokens."""
        return sum(rows for token, rows in self.appended.get(stream, ()) if token > above)

    @property
    def facts(self) -> int:
        """Of all streams."""
        return sum(map(len, self.appended.values()))


@dataclass(frozen=True, slots=True)
class Stage:
    """How matters stood at the end of a phase.

    :ivar counted: rows by stream, as each worker counts them
    :ivar http: answers to requests for missed rows in this run of the master, by status
    """

    phase: Phase
    due: Mapping[Release, Counter[str]]
    counted: Mapping[Release, Counter[str]]
    http: Counter[str]

    @property
    def exact(self) -> bool:
        """True when nothing is missing and nothing is too much."""
        return all(self.due[release] == self.counted[release] for release in RELEASES)


class Reckoning:
    """Adds up what is due to each worker.

    :ivar phases: so far; the last one is going on
    :ivar due: rows by stream
    """

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.due: dict[Release, Counter[str]] = {release: Counter() for release in RELEASES}
        self._first_asked: dict[str, int] = {}

    def sent_live(self, phase: Phase) -> None:
        """Everybody followed while the facts of a phase were appended."""
        for release in RELEASES:
            for stream in self.wanted(release):
                self.due[release][stream] += phase.rows(stream)

    def asked(self, tokens: Mapping[str, int]) -> None:
        """The legacy worker asked for these streams from these tokens: it gets what is above."""
        for stream, token in tokens.items():
            self._first_asked.setdefault(stream, token)
            for phase in self.phases:
                if phase.run == self.phases[-1].run or not _CATALOGUE[stream].in_memory:
                    self.due[LEGACY][stream] += phase.rows(stream, token)

    def wanted(self, release: Release) -> Iterable[str]:
        """The streams that a worker gets."""
        if release is LEGACY:
            return self._first_asked
        return [stream.name for stream in _CATALOGUE.known_to(release.generation)]

    def once(self, stream: str) -> int:
        """How many rows are above the token that the legacy worker asked from at first."""
        first = self._first_asked[stream]
        return sum(phase.rows(stream, first) for phase in self.phases)

    def asked_again(self) -> Counter[str]:
        """Rows that the legacy worker asked for although it had them, by stream."""
        return self._beyond_once(1)

    def passed_over(self) -> Counter[str]:
        """Rows of stored streams that the legacy worker never asked for, by stream."""
        return self._beyond_once(-1)

    def _beyond_once(self, sign: int) -> Counter[str]:
        stored = [name for name in self._first_asked if not _CATALOGUE[name].in_memory]
        due = self.due[LEGACY]
        return +Counter({name: sign * (due[name] - self.once(name)) for name in stored})
