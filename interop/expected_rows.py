"""The rows that real workers should have counted, computed from appends and requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from interop.releases import RELEASES, Release
from synrepl.core.tokens import Token
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
        """Number of rows of a stream that were appended above a token."""
        return sum(rows for token, rows in self.appended.get(stream, ()) if token > above)

    @property
    def facts(self) -> int:
        """Number of facts of all streams."""
        return sum(map(len, self.appended.values()))


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """Expected and counted rows at the end of a phase.

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


class ExpectedRows:
    """Computes the rows due to each worker.

    :ivar phases: the phases so far; the last one is running
    :ivar due: rows by stream
    """

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.due: dict[Release, Counter[str]] = {release: Counter() for release in RELEASES}
        self._first_asked: dict[Release, dict[str, int]] = {release: {} for release in RELEASES}

    def sent_live(self, phase: Phase) -> None:
        """Add the rows of a phase during which all workers followed."""
        for release in RELEASES:
            for stream in self.wanted(release):
                self.due[release][stream] += phase.rows(stream)

    def diagnoses(self, release: Release, tokens: Mapping[str, int]) -> None:
        """A worker requested these streams from these tokens: rows above are due."""
        for stream, token in tokens.items():
            self._first_asked[release].setdefault(stream, token)
            for phase in self.phases:
                if phase.run == self.phases[-1].run or not _CATALOGUE[stream].in_memory:
                    self.due[release][stream] += phase.rows(stream, token)

    def wanted(self, release: Release) -> Iterable[str]:
        """The streams that a worker gets."""
        if release.asks_by_token:
            return self._first_asked[release]
        return [stream.name for stream in _CATALOGUE.known_to(release.generation)]

    def once(self, release: Release, stream: str) -> int:
        """Number of rows above the token of a worker's first request."""
        first = self._first_asked[release][stream]
        return sum(phase.rows(stream, first) for phase in self.phases)

    def asked_again(self, release: Release) -> Counter[str]:
        """Rows that a worker requested again, by stream."""
        return self._beyond_once(release, 1)

    def passed_over(self, release: Release) -> Counter[str]:
        """Rows of stored streams that a worker never requested, by stream."""
        return self._beyond_once(release, -1)

    def _beyond_once(self, release: Release, sign: int) -> Counter[str]:
        stored = [name for name in self._first_asked[release] if not _CATALOGUE[name].in_memory]
        due = self.due[release]
        return +Counter({name: sign * (due[name] - self.once(release, name)) for name in stored})


@dataclass(frozen=True, slots=True)
class RedisPhaseResult:
    """The rows and positions of a worker over Redis at the end of a phase.

    :ivar due: rows by stream
    :ivar counted: rows by stream, as it counts them
    :ivar tokens: its expected positions, by stream
    :ivar positions: its positions, for the streams that its metrics show
    """

    phase: Phase
    due: Counter[str]
    counted: Counter[str]
    tokens: Mapping[str, Token]
    positions: Mapping[str, Token]

    @property
    def wrong_positions(self) -> list[str]:
        """Positions that are not as expected, as text."""
        return [
            f"{stream} at {at} instead of {self.tokens[stream]}"
            for stream, at in self.positions.items()
            if at != self.tokens[stream]
        ]

    @property
    def well(self) -> bool:
        """True when nothing is missing and nothing is too much."""
        return self.due == self.counted and not self.wrong_positions


class ExpectedLiveRows:
    """Computes the rows due to a worker that receives rows only when they are published.

    Positions announce the rows that it missed; it reads them in its own database.

    :ivar known: the streams that it knows
    :ivar phases: the phases so far; the last one is running
    """

    def __init__(self, release: Release) -> None:
        self.known = [stream.name for stream in _CATALOGUE.known_to(release.generation)]
        self._last: dict[str, Token] = {}
        self._due: Counter[str] = Counter()
        self.phases: list[Phase] = []

    def begin(self, name: str) -> None:
        """Begin a phase."""
        self.phases.append(Phase(name, 0))

    def appended(self, stream: str, facts: Sequence[tuple[Token, int]]) -> None:
        """Add facts that a writer has appended: (token, number of rows) of each."""
        self.phases[-1].appended.setdefault(stream, []).extend(facts)
        self._last[_sequence(stream)] = facts[-1][0]

    def end(self, connected: bool) -> None:
        """End the phase.

        :param connected: whether the worker was on Redis all the time
        """
        if connected:
            self._due.update({stream: self.phases[-1].rows(stream) for stream in self.known})

    def due(self) -> Counter[str]:
        """Rows by stream, now."""
        return +self._due

    def tokens(self) -> dict[str, Token]:
        """The expected positions of the worker, by stream.

        The last token of the stream's sequence, whether or not it received the rows: idle
        writers advance with the others, and positions announce what it missed.
        """
        return {
            stream: self._last[_sequence(stream)]
            for stream in self.known
            if _sequence(stream) in self._last
        }


def _sequence(stream: str) -> str:
    """The stream whose sequence gives out the tokens of a stream."""
    return _CATALOGUE[stream].numbered_with or stream
